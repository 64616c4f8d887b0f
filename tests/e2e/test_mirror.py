"""Commands whose files lie on another machine: a laptop with a root of its own, a control plane and a node, each in
a network namespace. What the laptop has is found on the node, what the command writes into the project is back when
vrun returns, and whatever part is restarted or cut meanwhile, the command goes on or ends with a reason."""
import os
import shutil
import signal
import socket
import struct
import subprocess

import pytest
from hosts import FAR_CONFIG, FarNode, far_world, ready_nodes, wait_for
from virga import Terminal, pids, read_bytes

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]

DRIVERS = f"/var/tmp/vg-drivers-{os.getpid()}"
CONFIG = FAR_CONFIG + f"node: {{libraries: [{DRIVERS}/lib*.so*]}}\n"


@pytest.fixture(scope="module")
def drivers():
    """A driver library that only the node's machine has, where the laptop cannot see it."""
    folder = DRIVERS
    os.mkdir(folder, 0o755)
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", f"{folder}/libmadeup.so.1", "-"],
                   input=b"int answer(void) { return 42; }\n", check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def far(drivers):
    network = far_world(config=CONFIG)
    yield network
    network.control.virga("down")
    network.close()


@pytest.fixture
def laptop(far):
    """Every test begins with a ready node, no task and an empty project."""
    for host in far.hosts:
        host.heal()
    for node in far.nodes:
        if node.agent.poll() is not None:
            node.restart_agent()
    wait_for("the node to be ready", lambda: ready_nodes(far) == 1)
    wait_for("earlier tasks to end", lambda: not far.control.json("task", "list"))
    for name in os.listdir(far.laptop.work):
        path = far.laptop.work / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return far.laptop


def ran(done, status=0):
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout.decode()


# ---- what the command finds -----------------------------------------------------------------------------------------


def test_files_and_programs_that_only_the_laptop_has_are_found(laptop):
    assert ran(laptop.vrun("cat", "/opt/only-here/file")) == "from the laptop\n"
    assert ran(laptop.vrun("laptop-tool", "a", "b")) == "tool of the laptop: a b\n"
    assert ran(laptop.vrun("sh", "-c", "test -e /usr/bin/less || echo none")) == "none\n"


def test_the_root_is_the_laptops_and_the_places_of_the_kernel_are_the_nodes(far, laptop):
    listing = "ls -a / | tr '\\n' ' '"
    assert ran(laptop.vrun("sh", "-c", listing)) == ran(laptop.plain("sh", "-c", listing))
    kinds = ran(laptop.vrun("stat", "-f", "-c", "%T", "/proc", "/sys", "/dev", "/tmp")).split()
    assert kinds == ["proc", "sysfs", "tmpfs", "tmpfs"]
    ran(laptop.vrun("sh", "-c", "echo x > /tmp/x; echo y > /opt/only-here/y; rm /opt/only-here/file"))
    assert not laptop.path("/tmp/x").exists(), "what is written outside of the project is dropped"
    assert os.listdir(laptop.path("/opt/only-here")) == ["file"]


def test_a_virtual_environment_of_the_laptop_works(laptop):
    ran(laptop.plain("python3", "-m", "venv", "--without-pip", "/home/dev/venv"))
    site = ran(laptop.plain("/home/dev/venv/bin/python", "-c", "import site; print(site.getsitepackages()[0])")).strip()
    laptop.path(f"{site}/only_here.py").write_text("WORD = 'imported'\n")
    done = laptop.vrun("/home/dev/venv/bin/python", "-c", "import only_here, sys; print(only_here.WORD, sys.prefix)")
    assert ran(done) == "imported /home/dev/venv\n"


def test_an_edit_is_seen_by_the_next_command(laptop):
    for i in range(10):
        (laptop.work / "f").write_text(f"version {i}\n")
        assert ran(laptop.vrun("cat", "f")) == f"version {i}\n"
        laptop.path("/opt/only-here/edited").write_text(f"version {i}\n")
        assert ran(laptop.vrun("cat", "/opt/only-here/edited")) == f"version {i}\n"
    laptop.path("/opt/only-here/edited").unlink()


def test_the_nodes_driver_libraries_are_found_although_the_laptop_has_none(laptop, drivers):
    script = "import ctypes; print(ctypes.CDLL('libmadeup.so.1').answer())"
    assert laptop.plain("python3", "-c", script).returncode != 0, "control"
    assert ran(laptop.vrun("python3", "-c", script)) == "42\n"


# ---- what it does ---------------------------------------------------------------------------------------------------


def test_what_is_written_into_the_project_is_back_when_vrun_returns(laptop):
    script = "mkdir -p d/e; for i in $(seq 50); do echo $i > d/e/$i; done; ln -s d/e/7 seven; chmod 640 d/e/1; mv d/e/2 two"
    ran(laptop.vrun("sh", "-c", script))
    assert sorted(os.listdir(laptop.work)) == ["d", "seven", "two"]
    assert (laptop.work / "seven").read_text() == "7\n"
    assert (laptop.work / "two").read_text() == "2\n"
    assert (laptop.work / "d/e/1").stat().st_mode & 0o777 == 0o640
    assert len(os.listdir(laptop.work / "d/e")) == 49
    assert {(laptop.work / "d/e" / n).stat().st_uid for n in os.listdir(laptop.work / "d/e")} == {0}
    ran(laptop.vrun("sh", "-c", "echo more >> two; rm -r d"))
    assert (laptop.work / "two").read_text() == "2\nmore\n"
    assert sorted(os.listdir(laptop.work)) == ["seven", "two"]


def test_status_input_and_a_missing_command_are_as_on_the_laptop(laptop):
    assert laptop.vrun("sh", "-c", "exit 7").returncode == 7
    assert laptop.vrun("sh", "-c", "kill -9 $$").returncode == 137
    assert laptop.vrun("no-such-command-anywhere").returncode == 127
    data = os.urandom(3 << 20)
    done = laptop.vrun("sha256sum", input=data)
    assert done.stdout == laptop.plain("sha256sum", input=data).stdout
    assert ran(laptop.vrun("pwd")) == laptop.inner + "\n"
    assert ran(laptop.vrun("id", "-u")) == "0\n"


def test_a_terminal_works(laptop):
    argv = laptop.inside(["vrun", "sh", "-c", "stty size; read -r x; echo got=$x; exit 3"])
    with Terminal(argv, laptop.env, "/", rows=31, cols=97) as t:
        t.expect(b"31 97")
        t.send("typed\n")
        t.expect(b"got=typed")
        assert t.wait() == 3


def test_a_session_keeps_what_was_written_outside_of_the_project(laptop):
    ran(laptop.vrun("-s", "mine", "sh", "-c", "echo kept > /opt/only-here/in-session; echo a > a"))
    assert ran(laptop.vrun("-s", "mine", "sh", "-c", "cat /opt/only-here/in-session; cat a")) == "kept\na\n"
    assert (laptop.work / "a").read_text() == "a\n"
    assert not laptop.path("/opt/only-here/in-session").exists()
    ran(laptop.virga("session", "end", "mine"))


def test_a_secret_is_refused_unless_it_is_allowed(far, laptop):
    folder = laptop.path("/home/dev/.ssh")
    folder.mkdir(mode=0o700, exist_ok=True)
    word = os.urandom(16).hex()
    (folder / "id_ed25519").write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{word}\n")
    done = laptop.vrun("cat", "/home/dev/.ssh/id_ed25519")
    assert done.returncode != 0 and word.encode() not in done.stdout
    assert ran(laptop.vrun("ls", "/home/dev/.ssh")) == "id_ed25519\n", "its name is no secret"
    done = laptop.vrun("--allow", "/home/dev/.ssh/id_ed25519", "cat", "/home/dev/.ssh/id_ed25519")
    assert word in ran(done)
    found = subprocess.run(["grep", "-rlaF", word, str(far.nodes[0].home)], capture_output=True).stdout.decode()
    assert found == "", "it never touches the node's disk"


# ---- what breaks ----------------------------------------------------------------------------------------------------


def slow(laptop, tail="cat /opt/only-here/late; echo done > after"):
    """A command that waits for a file in the project, then needs something it has not read before."""
    laptop.path("/opt/only-here/late").write_text("late\n")
    p = laptop.popen(["vrun", "sh", "-c", f"echo up; until test -e go; do sleep 0.1; done; {tail}"],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline() == b"up\n", p.communicate()[1]
    return p


def finish(far, laptop, p):
    """Its output, or what everybody knows of it when it hangs."""
    try:
        return p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        said = [laptop.virga("mirror", "status").stdout, (far.nodes[0].home / "agent.out").read_bytes()]
        for sock in far.nodes[0].environment().glob("*/sock"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(str(sock))
                s.send(struct.pack("II", 5, 0))  # STATUS
                said.append(s.recv(65536)[8:])
        p.kill()
        text = "\n".join(part.decode(errors="replace") for part in said)
        raise AssertionError(f"it hangs\n{text}\n{far.control.logs()}") from None


def goes_on(far, laptop, p):
    (laptop.work / "go").write_text("")
    out, err = finish(far, laptop, p)
    assert (p.returncode, out) == (0, b"late\n"), (p.returncode, out, err)
    assert (laptop.work / "after").read_text() == "done\n"


def test_a_restart_of_the_control_plane_disturbs_nothing(far, laptop):
    p = slow(laptop)
    pid = far.control.pid("virgad")
    os.kill(pid, signal.SIGKILL)
    wait_for("virgad to be back", lambda: far.control.pid("virgad") not in (None, pid) and ready_nodes(far) == 1)
    goes_on(far, laptop, p)


def test_a_restart_of_the_agent_disturbs_nothing(far, laptop):
    p = slow(laptop)
    far.nodes[0].stop_agent()
    far.nodes[0].restart_agent()
    wait_for("the node to be ready", lambda: ready_nodes(far) == 1)
    goes_on(far, laptop, p)


def test_a_link_that_is_cut_and_comes_back_is_only_a_pause(far, laptop):
    p = slow(laptop)
    laptop.cut()
    (laptop.work / "go").write_text("")
    with pytest.raises(subprocess.TimeoutExpired):
        p.wait(timeout=2)
    laptop.heal()
    goes_on(far, laptop, p)


def daemons(home):
    return [p for p in pids() if b"\0fsd\0" in read_bytes(f"/proc/{p}/cmdline")
            and str(home).encode() in read_bytes(f"/proc/{p}/cmdline")]


def test_a_killed_file_daemon_ends_its_tasks_with_a_reason_and_the_next_works(far, laptop):
    p = slow(laptop)
    q = laptop.popen(["vrun", "--env", "node", "-C", "/", "sh", "-c", "echo up; read x; echo fine"], stdin=subprocess.PIPE)
    assert q.stdout.readline() == b"up\n"
    for pid in daemons(far.nodes[0].home):
        os.kill(pid, signal.SIGKILL)
    out, err = finish(far, laptop, p)
    assert p.returncode == 137 and b"file daemon ended" in err, (p.returncode, err)
    assert q.communicate(b"go\n", timeout=60)[0] == b"fine\n", "a task without such files is not disturbed"
    assert ran(laptop.vrun("cat", "/opt/only-here/file")) == "from the laptop\n"


def test_an_interrupted_command_leaves_nothing_behind(far, laptop):
    p = slow(laptop)
    p.send_signal(signal.SIGINT)
    finish(far, laptop, p)
    assert p.returncode == -signal.SIGINT
    wait_for("no task to be left", lambda: not far.control.json("task", "list"))
    mounts = read_bytes("/proc/self/mounts")
    assert b"fuse" not in mounts, "nothing is mounted in the host's namespace"


# ---- a client beside the control plane -------------------------------------------------------------------------------


class Elsewhere(FarNode):
    """A node that says, as another machine would, another machine's name."""

    named_by = "/etc/machine-id" if read_bytes("/etc/machine-id") else "/proc/sys/kernel/random/boot_id"

    def inside(self, argv):
        (self.home / "machine-id").write_text("0" * 31 + "1\n")
        script = f"mount --make-rprivate / && mount --bind {self.home}/machine-id {self.named_by} && exec \"$@\""
        return super().inside(["unshare", "--mount", "sh", "-c", script, "sh", *argv])


def test_a_local_clients_task_on_another_machine_finds_the_clients_files(far, laptop):
    node = far.add("other", "10.77.0.15", kind=Elsewhere)
    try:
        far.nodes[0].stop_agent()
        node.join(far.control, far.control.out("virga", "node", "invite"))
        wait_for("the other node to be ready", lambda: any(
            n["name"] == "other" and n["state"] == "ready" for n in far.control.json("node", "list")))
        (far.control.work / "here").write_text("beside virgad\n")
        done = far.control.vrun("sh", "-c", "cat here; echo back > back; cat /etc/machine-id || true")
        out = ran(done).split("\n")
        assert out[0] == "beside virgad"
        assert (far.control.work / "back").read_text() == "back\n"
        assert out[1] == read_bytes("/etc/machine-id").decode().strip()
    finally:
        node.stop_agent()
        far.nodes[0].restart_agent()
