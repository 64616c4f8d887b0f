"""Several hosts on one machine: each has a network namespace and a home of its own, and all are joined by a bridge in
a namespace for itself. A Laptop also has a root of its own, so that nothing of it can be found on a node by accident.
Standard library only."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import fsd
from virga import BIN, ROOT, WAIT_S, Cloud, wait_for


def sh(*argv, check=True):
    return subprocess.run(argv, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.decode()


class Host(Cloud):
    """A host is a home and a network namespace."""

    shared = ["--shared", "/var/tmp"]  # what its agent says that every host has

    def __init__(self, net, name, address, config=None):
        super().__init__(config)
        os.chmod(self.work, 0o777)  # a user of another machine is not root here
        self.net, self.name, self.address = net, name, address
        self.netns = f"{net.prefix}{name}"
        self.agent = None
        sh("ip", "netns", "add", self.netns)
        sh("ip", "link", "add", "eth0", "netns", self.netns, "type", "veth",
           "peer", "name", name, "netns", net.bridge)
        sh("ip", "-n", net.bridge, "link", "set", name, "master", "br0", "up")
        sh("ip", "-n", self.netns, "link", "set", "lo", "up")
        sh("ip", "-n", self.netns, "addr", "add", f"{address}/24", "dev", "eth0")
        sh("ip", "-n", self.netns, "link", "set", "eth0", "up")

    def inside(self, argv):
        return ["nsenter", f"--net=/run/netns/{self.netns}", "--", *argv]

    def popen(self, argv, **kw):
        return super().popen(self.inside(argv), **kw)

    def run(self, argv, **kw):
        return super().run(self.inside(argv), **kw)

    def ip(self, *argv):
        return sh("ip", "-n", self.netns, *argv)

    def cut(self):
        self.ip("link", "set", "eth0", "down")

    def heal(self):
        self.ip("link", "set", "eth0", "up")

    def hang_up(self):
        """Breaks its connections, where the kernel can do that; the link stays."""
        sh("ss", "-N", self.netns, "-K", "-t", check=False)

    def traffic(self):
        """Bytes through this host's link, both ways."""
        text = sh("nsenter", f"--net=/run/netns/{self.netns}", "cat", "/proc/net/dev")
        fields = re.search(r"eth0:\s*(.*)", text).group(1).split()
        return int(fields[0]) + int(fields[8])

    def join(self, control, token):
        log = open(self.home / "agent.out", "ab")
        self.agent = self.popen(["virga", "agent", "--join", f"{control.address}:7700", "--token", token,
                                 "--name", self.name, *self.shared], stdout=log, stderr=log)
        log.close()

    def restart_agent(self):
        log = open(self.home / "agent.out", "ab")
        self.agent = self.popen(["virga", "agent", "--name", self.name, *self.shared], stdout=log, stderr=log)
        log.close()

    def stop_agent(self):
        if self.agent:
            self.agent.terminate()
            try:
                self.agent.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.agent.kill()

    def remove(self):
        self.kill_leftovers()
        sh("ip", "netns", "del", self.netns, check=False)
        super().remove()


# What only the laptop has. Its root is this machine's, copy-on-write, with another home and another hostname; the
# programs under test lie where they were built.
LAPTOP = """
set -e
mount --make-rprivate /
mount -t overlay laptop -o lowerdir=/,upperdir=$1/upper,workdir=$1/work $1/root
cd $1/root
mount -t tmpfs none root
mount -t tmpfs none tmp
mkdir -p home/dev
mount --bind $1/home home/dev
mkdir -p .$2 .$3
mount --bind $2 .$2
mount --rbind $3 .$3
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mkdir -p opt/only-here
echo 'from the laptop' > opt/only-here/file
printf '#!/bin/sh\\necho tool of the laptop: "$@"\\n' > usr/local/bin/laptop-tool
chmod 755 usr/local/bin/laptop-tool
rm -f usr/bin/less
mkdir -p .oldroot
pivot_root . .oldroot
umount -l /.oldroot
rmdir /.oldroot
hostname laptop
echo ready
exec sleep infinity
"""


class FarNode(Host):
    """A node that has no folder in common with its clients."""

    shared = []

    def environment(self):
        """What its file daemons keep on disk."""
        return self.home / "node" / "fs"

    def daemons(self):
        """{pid: what it says of itself} of the file daemons."""
        return fsd.daemons(self.environment(), WAIT_S)

    def counters(self):
        """All numbers that the daemons say of themselves, summed by name."""
        return fsd.counters(self.environment(), WAIT_S)

    def end_daemons(self):
        for pid in self.daemons():
            os.kill(pid, signal.SIGTERM)
            wait_for("the file daemon's end", lambda: not os.path.exists(f"/proc/{pid}"))

    def forget(self):
        """Makes it a node that has never seen anybody's files: daemons end, what they kept goes."""
        self.end_daemons()
        for slot in self.environment().glob("[0-9]*"):
            shutil.rmtree(slot, ignore_errors=True)


class Laptop(Host):
    """A client with a root of its own. `work` is its project as the test sees it, `inner` as it sees it itself."""

    inner = "/home/dev/project"

    def __init__(self, net, name, address, config=None):
        super().__init__(net, name, address, config)
        os.rmdir(self.work)
        self.base = Path(tempfile.mkdtemp(prefix="vgl-", dir="/var/tmp"))
        os.chmod(self.base, 0o755)
        for folder in ("upper", "work", "root", "home", "home/project"):
            (self.base / folder).mkdir()
        self.work = self.base / "home" / "project"
        self.env.update(HOME="/home/dev", PWD=self.inner, USER="root",
                        PATH=f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
            self.env.pop(name, None)
        self.holder = subprocess.Popen(["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", LAPTOP, "sh",
                                        str(self.base), str(self.home), str(ROOT)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"ready\n":
            self.remove()
            raise AssertionError("the laptop's root could not be made")

    def inside(self, argv, folder=None):
        return ["nsenter", f"--net=/run/netns/{self.netns}", f"--mount=/proc/{self.holder.pid}/ns/mnt",
                f"--uts=/proc/{self.holder.pid}/ns/uts", "--", "env", "-C", folder or self.inner, *argv]

    def path(self, inner):
        """Where the test finds a path of the laptop's: through its root, past every mount."""
        return Path(f"/proc/{self.holder.pid}/root{inner}")

    def plain(self, *argv, **kw):
        """Runs a program on the laptop itself, to compare with."""
        return self.run(list(argv), **kw)

    def remove(self):
        self.kill_leftovers()
        self.holder.kill()
        self.holder.wait()
        super().remove()
        subprocess.run(["rm", "-rf", str(self.base)], check=False)


class Network:
    """The bridge, and the hosts that were added to it."""

    def __init__(self):
        self.prefix = f"vg{os.getpid() % 100000}-"
        self.bridge = self.prefix + "br"
        self.hosts = []
        sh("ip", "netns", "add", self.bridge)
        sh("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        sh("ip", "-n", self.bridge, "link", "set", "br0", "up")

    def add(self, name, address, config=None, kind=Host):
        host = kind(self, name, address, config)
        self.hosts.append(host)
        return host

    def close(self):
        for host in self.hosts:
            host.stop_agent()
        for host in self.hosts:
            host.remove()
        sh("ip", "netns", "del", self.bridge, check=False)


FAR_CONFIG = """
listen: 10.77.0.1:7700
lease: 15s
heartbeat: 500ms
"""


def far_world(nodes=1, config=FAR_CONFIG, kind=FarNode):
    """A control plane (.1), nodes (.11 …) and a laptop (.21) that has logged in. The caller closes it."""
    network = Network()
    try:
        network.control = network.add("ctl", "10.77.0.1", config)
        network.nodes = [network.add(f"node{i + 1}", f"10.77.0.{11 + i}", kind=kind) for i in range(nodes)]
        network.laptop = network.add("laptop", "10.77.0.21", kind=Laptop)
        done = network.control.virga("up", "--no-agent")
        assert done.returncode == 0, done.stderr.decode() + network.control.logs()
        for node in network.nodes:
            node.join(network.control, network.control.out("virga", "node", "invite"))
        wait_for("the nodes to be ready", lambda: ready_nodes(network) == nodes or not alive(network))
        login(network, network.laptop)
    except BaseException:
        network.close()
        raise
    return network


def login(network, host, *who):
    token = network.control.out("virga", "token", "create", *who)
    done = host.virga("login", "10.77.0.1:7700", "--token", token)
    assert done.returncode == 0, done.stderr


def ready_nodes(network):
    return sum(n["state"] == "ready" for n in network.control.json("node", "list"))


def only(network, node):
    """Nothing new goes anywhere else."""
    for other in network.nodes:
        done = network.control.virga("node", "resume" if other is node else "drain", other.name)
        assert done.returncode == 0, done.stderr


def alive(network):
    for node in network.nodes:
        if node.agent.poll() is not None:
            raise AssertionError(f"the agent of {node.name} ended: " + (node.home / "agent.out").read_text()[-2000:])
    return True
