"""What bench/run mirror compares: each has measure(case), which yields (state, fields) run by run."""
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import fsd  # pylint: disable=wrong-import-position

BIN = os.path.realpath(os.environ.get("VIRGA_BIN") or os.path.join(ROOT, "build", "bin"))
CLIENT, NODE = "10.79.0.1", "10.79.0.2"  # src/delay-line.c
SSHFS = ("allow_other,suid,dev,no_contain_symlinks,kernel_cache,dcache_timeout=3600,entry_timeout=3600,attr_timeout=3600,"
         "negative_timeout=3600,dcache_max_size=1000000,max_conns=2")


def call(argv, timeout=300, **kw):
    """Like subprocess.run; what runs too long goes with all it started."""
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         start_new_session=True, **kw)
    try:
        out, _ = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        raise
    return subprocess.CompletedProcess(argv, p.returncode, out)


def must(argv, **kw):
    done = call(argv, **kw)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout.decode(errors='replace').strip()[-400:]}")
    return done.stdout.decode(errors="replace")


class Timed:
    """One command's time, and the bytes that went over the line meanwhile."""

    def __init__(self, line, limit):
        self.line, self.limit, self.fields = line, limit, {}

    def run(self, steps, cwd, env):
        before = self.line.bytes()
        begin = time.monotonic()
        status, text = 0, ""
        for argv in steps:
            left = self.limit - (time.monotonic() - begin)
            try:
                done = call(argv, timeout=max(left, 0.1), cwd=cwd, env=env)
            except subprocess.TimeoutExpired:
                status, text = None, f"stopped after {self.limit} s"
                break
            if done.returncode != 0:
                status, text = done.returncode, done.stdout.decode(errors="replace").strip()[-200:]
                break
        self.fields["ms"] = round((time.monotonic() - begin) * 1000, 1)
        after = self.line.bytes()
        self.fields.update(up_bytes=after[0] - before[0], down_bytes=after[1] - before[1])
        if status != 0:
            self.fields["failed"] = text or f"exit status {status}"
        return status == 0


class Native:
    name = "native"
    needs = ()

    def __init__(self, bench):
        self.bench = bench

    def measure(self, case):
        for state in ("first", "warm"):
            timed = Timed(self.bench.line, self.bench.limit)
            timed.run([case.argv], case.folder, self.bench.env)
            yield state, timed.fields


def lacks(peer):
    """The first program that a peer needs and this machine does not have, or None."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return next((program for program in peer.needs if not shutil.which(program, path=path)), None)


class Ssh:
    """An sshd of the client's for the node, with keys of their own."""

    def __init__(self, line, folder):
        for key in ("host", "user"):
            must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(folder, key)])
        shutil.copy(os.path.join(folder, "user.pub"), os.path.join(folder, "authorized"))
        with open(os.path.join(folder, "sshd_config"), "w", encoding="utf-8") as f:
            f.write(f"Port 22\nListenAddress {CLIENT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
                    f"PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nUseDNS no\n"
                    "Subsystem sftp internal-sftp\nPasswordAuthentication no\n")
        self.config = os.path.join(folder, "ssh_config")
        with open(self.config, "w", encoding="utf-8") as f:
            f.write(f"Host client\n HostName {CLIENT}\n User root\n IdentityFile {folder}/user\n Compression no\n"
                    f" Ciphers aes128-gcm@openssh.com\n UserKnownHostsFile {folder}/known\n StrictHostKeyChecking no\n"
                    " LogLevel ERROR\n BatchMode yes\n")
        os.makedirs("/run/sshd", exist_ok=True)
        self.p = subprocess.Popen(line.client(shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-f",
                                              os.path.join(folder, "sshd_config")), stderr=subprocess.DEVNULL)
        for _ in range(100):
            if call(line.node("ssh", "-F", self.config, "client", "true")).returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError("sshd did not answer")

    def close(self):
        self.p.terminate()
        self.p.wait()


class Sshfs:
    name = "sshfs"
    needs = ("sshfs", "ssh", "sshd", "ssh-keygen")

    def __init__(self, bench):
        self.bench = bench
        self.root = os.path.join(bench.folder, "sshfs")
        os.makedirs(self.root)

    def unmount(self):
        for name in ("dev", "tmp", ""):
            call(["umount", "-l", os.path.join(self.root, name)])

    def measure(self, case):
        b = self.bench
        mount = b.line.node("sshfs", "-F", b.ssh.config, "client:/", self.root, "-o", SSHFS)
        binds = [["mount", "--bind", "/dev", f"{self.root}/dev"], ["mount", "-t", "tmpfs", "none", f"{self.root}/tmp"]]
        inside = ["env", "-C", "/", "chroot", self.root, "env", "-C", case.folder, *case.argv]
        try:
            timed = Timed(b.line, b.limit)
            fine = timed.run([mount, *binds, inside], "/", b.env)
            yield "first", timed.fields
            if fine:  # what it wrote stays: taken away behind its back, sshfs would not see that
                timed = Timed(b.line, b.limit)
                timed.run([inside], "/", b.env)
                yield "warm", timed.fields
        finally:
            self.unmount()


def links_of(path, found):
    """The path without a link in it; every link on the way is added to `found`."""
    whole, parts = "/", [p for p in path.split("/") if p]
    while parts:
        part = parts.pop(0)
        if part == "..":
            whole = os.path.dirname(whole)
            continue
        if part == ".":
            continue
        step = os.path.join(whole, part)
        if os.path.islink(step):
            found.add(step)
            target = os.readlink(step)
            if target.startswith("/"):
                whole = "/"
            parts = [p for p in target.split("/") if p] + parts
        else:
            whole = step
    return whole


def read_some(path):
    with open(path, "rb") as f:
        return f.read(4096)


def closure(case, env):
    """Every file of the root that the command names, and the links that lead there."""
    done = call(["strace", "-f", "-z", "-s", "4096", "-e", "trace=%file", "env", "-C", case.folder, *case.argv], cwd=case.folder, env=env)
    case.reset()
    found = set()
    for path in re.findall(r'"((?:[^"\\]|\\.)*)"', done.stdout.decode(errors="replace")):
        path = os.path.join(case.folder, path)
        if os.path.exists(path) and not path.startswith(("/dev", "/proc", "/sys", "/tmp")):
            real = links_of(path, found)
            if os.path.isfile(real) and not real.startswith(case.folder + "/"):
                found.add(real)
                interpreter = re.search(rb"/lib\S*/ld-linux[^\0]*", read_some(real))
                if interpreter:  # the kernel opens it, not the program
                    found.add(links_of(interpreter.group().decode(), found))
    return sorted(found)


class Rsync:
    name = "rsync"
    needs = ("rsync", "ssh", "sshd", "ssh-keygen", "strace")

    def __init__(self, bench, whole=False):
        self.bench, self.whole = bench, whole
        self.name = "rsync-usr" if whole else "rsync"
        self.root = os.path.join(bench.folder, self.name)
        self.lists = {}

    def measure(self, case):
        b = self.bench
        if case.name not in self.lists:
            self.lists[case.name] = os.path.join(b.folder, f"closure-{self.name}-{case.name}")
            with open(self.lists[case.name], "w", encoding="utf-8") as f:
                f.write("\n".join([case.folder, *closure(case, b.env), *(["/usr"] if self.whole else [])]) + "\n")
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(os.path.join(self.root, case.folder[1:]))
        for name in ("dev", "tmp"):
            os.makedirs(os.path.join(self.root, name))
        must(["mount", "--bind", "/dev", f"{self.root}/dev"])
        copy = b.line.node("rsync", "-a", "-W", "-e", f"ssh -F {b.ssh.config}")
        there = [*copy, "-r", f"--files-from={self.lists[case.name]}", "client:/", self.root]
        inside = ["chroot", self.root, "env", "-C", case.folder, *case.argv]
        back = [[*copy, f"{self.root}{case.folder}/", f"client:{case.folder}/"]] if case.result else []
        try:
            for state in ("first", "warm"):
                case.reset()
                timed = Timed(b.line, b.limit)
                fine = timed.run([there, inside, *back], "/", b.env)
                yield state, timed.fields
                if not fine:
                    return
        finally:
            call(["umount", f"{self.root}/dev"])
            shutil.rmtree(self.root, ignore_errors=True)


class Virga:
    name = "virga"
    needs = ()

    def __init__(self, bench):
        self.bench = bench
        self.homes = {end: tempfile.mkdtemp(prefix=f"vgm{end}-", dir="/tmp") for end in ("node", "client")}
        self.node_env = {**bench.env, "VIRGA_HOME": self.homes["node"]}
        self.state = os.path.join(self.homes["client"], "mirror")  # where VIRGA_HOME puts what the file service learns
        self.client_env = {**bench.env, "VIRGA_HOME": self.homes["client"]}
        with open(os.path.join(self.homes["node"], "config.yaml"), "w", encoding="utf-8") as f:
            f.write(f"listen: {NODE}:7700\npools:\n  - name: default\n  - name: own\n    shared: [{bench.folder}]\n")
        must(bench.line.node("virga", "up"), env=self.node_env)
        token = must(bench.line.node("virga", "token", "create"), env=self.node_env).strip()
        must(bench.line.client("virga", "login", f"{NODE}:7700", "--token", token), env=self.client_env)

    def kept(self):
        """Where the node's file daemons keep what they fetched."""
        return os.path.join(self.homes["node"], "node", "fs")

    def make_cold(self):
        """A node that has never seen this client: its daemons end and what they kept is put aside. (Removing it here
        would make the file system search for free inodes among the ones just removed, as no new node does.)"""
        for pid in fsd.daemons(self.kept()):
            os.kill(pid, signal.SIGTERM)
            for _ in range(200):
                if not os.path.exists(f"/proc/{pid}"):
                    break
                time.sleep(0.05)
            else:
                os.kill(pid, signal.SIGKILL)
        if os.path.isdir(self.kept()):
            os.rename(self.kept(), tempfile.mkdtemp(prefix="aside-", dir=self.homes["node"]))

    def forget_traces(self):
        for path, _, files in os.walk(self.state):
            if os.path.basename(path) == "traces":
                for name in files:
                    os.unlink(os.path.join(path, name))

    def stop_service(self):
        """As after ten minutes' rest: the file service has left, with its lock."""
        call(self.bench.line.client("virga", "mirror", "stop"), env=self.client_env)
        for name in glob.glob(os.path.join(self.homes["client"], "run", "mirror-*.lock")):
            with open(name, "rb") as f:
                fcntl.flock(f, fcntl.LOCK_SH)

    def measure(self, case):
        b = self.bench
        self.forget_traces()
        for state in ("first", "elsewhere", "cold", "warm", "warm", "new start", "start", "start", "own", "own"):
            case.reset()
            if state == "own" and case.name == "untar":
                continue  # there the person is nobody, who may not give files to root as the archive says
            if state in ("new start", "start"):  # the same, and a program that does nothing
                timed = Timed(b.line, b.limit)
                timed.run([b.line.client("vrun", "/usr/bin/true")], case.folder, self.client_env)
                if state == "start":
                    yield state, timed.fields
                continue
            if state in ("first", "elsewhere", "cold"):
                self.make_cold()
            if state == "cold":
                self.stop_service()
            before = fsd.counters(self.kept())
            timed = Timed(b.line, b.limit)
            argv = ["vrun", *(["--env", "node", "--pool", "own"] if state == "own" else []), *case.argv]
            fine = timed.run([b.line.client(*argv)], case.folder, self.client_env)
            if state == "own":  # nothing of it is mirrored, so there is nothing to count
                yield state, timed.fields
                continue
            after = fsd.counters(self.kept())
            for key in ("demands", "met", "demand_bytes", "pushed", "pushed_bytes"):
                if key in after:
                    timed.fields[key] = after[key] - before.get(key, 0)
            if "demands" in after:  # those that no push on its way met already
                timed.fields["trips"] = timed.fields["demands"] - timed.fields.get("met", 0)
            if fine:  # and what no push was to bring at all
                asked = json.loads(must(b.line.client("virga", "mirror", "status", "-o", "json"), env=self.client_env))["asked"]
                timed.fields["unforeseen"] = sum(a["why"] not in ("told", "sent", "queued") for a in asked)
            if fine and not after:
                timed.fields["failed"] = "it ran without a file daemon: nothing was mirrored"
            yield state, timed.fields
            if "failed" in timed.fields:
                return

    def close(self):
        call(self.bench.line.node("virga", "down"), env=self.node_env)
        call(self.bench.line.client("virga", "mirror", "stop"), env=self.client_env)
        for home in self.homes.values():
            shutil.rmtree(home, ignore_errors=True)
