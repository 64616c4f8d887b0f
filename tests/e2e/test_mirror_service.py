"""The file service on the person's machine: how it is started and ends, what it says of itself, what it hides, and
that a command outlives it."""
import json
import os
import shutil
import signal
import stat
import subprocess
import threading

import pytest
from hosts import far_world, login
from virga import WAIT_S, wait_for


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]


@pytest.fixture(scope="module")
def far():
    network = far_world()
    yield network
    network.control.virga("down")
    network.close()


@pytest.fixture
def laptop(far):
    for path in far.laptop.work.iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    return far.laptop


def services(laptop):
    """Process ids of the laptop's file services."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as f:
                env = f.read().split(b"\0")
        except OSError:
            continue
        if words[1:3] == [b"mirror", b"serve"] and f"VIRGA_HOME={laptop.home}".encode() in env:
            found.append(int(pid))
    return found


def status(laptop):
    done = laptop.virga("mirror", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stop(laptop):
    laptop.virga("mirror", "stop")
    wait_for("the service to end", lambda: not services(laptop))


def test_the_first_vrun_starts_one_service_however_many_come_at_once(laptop):
    stop(laptop)
    results = []
    threads = [threading.Thread(target=lambda: results.append(laptop.run(["vrun", "cat", "/opt/only-here/file"])))
               for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [r.stdout for r in results] == [b"from the laptop\n"] * 6, [r.stderr for r in results]
    assert len(services(laptop)) == 1
    said = status(laptop)
    assert said["cloud"] == "connected" and said["nodes"][0]["node"] == "node1"
    assert said["watched"] > 5 and said["folders_sent"] >= said["watched"]


def test_only_its_user_can_reach_it(laptop):
    assert laptop.run(["vrun", "true"]).returncode == 0
    folder = laptop.home / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    sockets = [p for p in folder.iterdir() if p.name.startswith("mirror-") and not p.name.endswith(".lock")]
    assert len(sockets) == 1 and stat.S_IMODE(sockets[0].stat().st_mode) == 0o600


def have_way(laptop):
    """A connection to the cloud is ready for the next command."""
    assert laptop.run(["vrun", "true"]).returncode == 0
    wait_for("a way to be ready", lambda: status(laptop)["ways_ready"])


def test_the_next_command_finds_its_way_ready(laptop):
    have_way(laptop)
    before = status(laptop)["ways_taken"]
    done = laptop.run(["vrun", "sh", "-c", "cat; echo loud >&2; exit 7"], input=b"x" * 3_000_000)
    assert (done.returncode, len(done.stdout), done.stderr) == (7, 3_000_000, b"loud\n")
    assert status(laptop)["ways_taken"] == before + 1
    # The cloud hangs up: what was ready is of no use, and a command makes its own.
    have_way(laptop)
    laptop.hang_up()
    assert laptop.run(["vrun", "echo", "hello"]).stdout == b"hello\n"


def test_a_command_outlives_the_service(laptop):
    # What a running command sees of the environment stays; its project changes under it. Its own bytes go through the
    # service as well, until that dies.
    have_way(laptop)
    later = laptop.path("/opt/only-here/later")
    later.write_text("not looked at before\n")
    (laptop.work / "note").write_text("one text\n")
    p = laptop.popen(["vrun", "sh", "-c", "while read x; do echo $x >> log; cat $x; done"],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sent = []

    def ask(what):
        sent.append(f"{what}\n")
        p.stdin.write(sent[-1].encode())
        p.stdin.flush()
        return p.stdout.readline()

    try:
        assert ask("/opt/only-here/file") == b"from the laptop\n"
        assert ask("note") == b"one text\n"
        assert status(laptop)["ways_taken"] > 0
        done = laptop.virga("mirror", "stop")
        assert done.returncode and b"1 running commands use it" in done.stderr
        killed = services(laptop)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_for("another service", lambda: services(laptop) and not set(services(laptop)) & set(killed))
        (laptop.work / "note").write_text("another text\n")
        wait_for("the edit to be seen", lambda: ask("note") == b"another text\n")
        assert ask("/opt/only-here/later") == b"not looked at before\n"
        p.stdin.close()
        assert p.wait(timeout=WAIT_S) == 0, p.stderr.read()
        assert (laptop.work / "log").read_text() == "".join(sent)
    finally:
        later.unlink(missing_ok=True)
        p.kill()
        p.wait()


def test_it_leaves_when_there_is_nothing_to_do(laptop):
    stop(laptop)
    p = laptop.popen(["virga", "mirror", "serve", "--idle", "1s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for("the service", lambda: laptop.virga("mirror", "status").returncode == 0)
        assert p.wait(timeout=WAIT_S) == 0
    finally:
        p.kill()
        p.wait()
    done = laptop.virga("mirror", "status")
    assert done.returncode and b"vrun starts it when it is needed" in done.stderr


def test_tasks_are_forgotten_after_their_end(laptop):
    assert laptop.run(["vrun", "true"]).returncode == 0
    assert status(laptop)["tasks"]
    wait_for("the tasks to be forgotten", lambda: not status(laptop)["tasks"])


def test_explain_says_what_a_node_may_read_and_vrun_does_the_same(laptop):
    (laptop.work / "sub").mkdir()
    (laptop.work / ".virgaignore").write_text("*.secret\nsub/\n")
    (laptop.work / "a.secret").write_text("x")
    (laptop.work / "a.txt").write_text("x")
    done = laptop.virga("mirror", "explain", "a.secret", "a.txt", "/etc/shadow", "/proc/version")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "a.secret: a node does not see it" in text and "a.txt: a node may read it" in text
    assert "/etc/shadow: a node sees its name and size" in text and "--allow /etc/shadow" in text
    assert "/proc/version: what is here comes from the node" in text
    assert laptop.run(["vrun", "ls", "-A"]).stdout.split() == [b".virgaignore", b"a.txt"]
    done = laptop.run(["vrun", "cat", "/etc/shadow"])
    assert done.returncode and not done.stdout
    (laptop.work / ".virgaignore").unlink()
    assert laptop.run(["vrun", "ls", "-A"]).stdout.split() == [b"a.secret", b"a.txt", b"sub"]


def test_a_known_command_asks_for_nothing(laptop):
    command = ["vrun", "/usr/bin/python3", "-E", "-c", "import json, email; print(1)"]
    assert laptop.run(command).stdout == b"1\n"
    wait_for("the trace", lambda: any((laptop.home / "mirror" / "traces").iterdir()))
    before = status(laptop)
    assert laptop.run(command).stdout == b"1\n"
    after = status(laptop)
    assert after["demand_bytes"] == before["demand_bytes"], "everything was pushed before"
    assert after["tasks"][-1]["traced"]


def test_options_that_contradict_each_other_are_refused(laptop):
    done = laptop.run(["vrun", "--env", "node", "--allow", "/etc/shadow", "true"])
    assert done.returncode == 125 and b"node's own" in done.stderr
    done = laptop.run(["vrun", "--writable", "/etc", "true"])
    assert done.returncode == 125 and b"belongs to the system" in done.stderr
    done = laptop.run(["vrun", "--writable", "/no/such/folder", "true"])
    assert done.returncode == 125 and b"--writable" in done.stderr


def test_more_folders_can_be_written_back(laptop):
    more = laptop.path("/home/dev/more")
    more.mkdir(exist_ok=True)
    done = laptop.run(["vrun", "--writable", "/home/dev/more", "sh", "-c", "echo here > /home/dev/more/f; echo there > /opt/g"])
    assert done.returncode == 0, done.stderr
    assert (more / "f").read_text() == "here\n"
    assert not laptop.path("/opt/g").exists()


def test_in_the_root_folder_nothing_comes_back_and_that_is_said(laptop):
    done = subprocess.run(laptop.inside(["vrun", "sh", "-c", "echo x > /opt/h; cat /opt/h"], folder="/"),
                          env=laptop.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0 and done.stdout == b"x\n", done.stderr
    assert b"--writable" in done.stderr
    assert not laptop.path("/opt/h").exists()


def test_who_logs_in_as_somebody_else_has_another_service(far, laptop):
    assert laptop.run(["vrun", "true"]).returncode == 0
    first = services(laptop)
    far.control.virga("user", "add", "bea", check=0)
    login(far, laptop, "--user", "bea")
    try:
        assert laptop.run(["vrun", "cat", "/opt/only-here/file"]).stdout == b"from the laptop\n"
        assert len(services(laptop)) == 2 and set(first) < set(services(laptop))
        assert "bea" in [t["user"] for t in far.control.json("task", "list", "--all", "--all-users")]
        laptop.virga("mirror", "stop", check=0)
        wait_for("bea's service to end", lambda: services(laptop) == first)
    finally:
        login(far, laptop)


def test_it_leaves_when_its_cloud_is_gone_and_nobody_waits(far, laptop):
    for pid in services(laptop):
        os.kill(pid, signal.SIGTERM)
    wait_for("the service to end", lambda: not services(laptop))
    service = laptop.popen(["virga", "mirror", "serve", "--idle", "1s"])
    wait_for("the service", lambda: laptop.virga("mirror", "status").returncode == 0)
    p = laptop.popen(["vrun", "sh", "-c", "echo up; exec sleep 600"])
    try:
        assert p.stdout.readline() == b"up\n"
        for which in ("up", "virgad"):
            os.kill(far.control.pid(which), signal.SIGKILL)
        wait_for("the cloud to be missed", lambda: status(laptop)["cloud"] != "connected")
        p.kill()
        assert service.wait(timeout=WAIT_S) == 0
    finally:
        for each in (p, service):
            each.kill()
            each.wait()
        far.control.virga("up", "--no-agent", check=0)
