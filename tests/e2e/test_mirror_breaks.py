"""The laptop's link breaks and heals all the time; programs of the cloud are killed and come back. What runs goes on."""
import os
import random
import signal
import subprocess
import threading

import pytest
from hosts import ready_nodes
from test_mirror_work import write_c_project
from trees import differences, tree
from virga import LONG, processes_of, wait_for

FILES = 5000 if LONG else 800
ROUNDS = 5 if LONG else 1


class Cuts:
    """Takes the laptop's cable out for a moment, or breaks its connections, every second or two, while the block runs."""

    def __init__(self, host, seed):
        self.host, self.rng, self.over, self.n = host, random.Random(seed), threading.Event(), 0
        self.thread = threading.Thread(target=self.work)

    def work(self):
        while not self.over.wait(self.rng.uniform(0.3, 1.7)):
            self.n += 1
            if self.rng.random() < 0.4:
                self.host.hang_up()
                continue
            self.host.cut()
            self.over.wait(self.rng.uniform(0.1, 0.9))
            self.host.heal()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.thread.join()
        self.host.heal()


@pytest.fixture(autouse=True)
def healed(far):
    """Every test begins with all links up and a ready node."""
    far.laptop.heal()
    wait_for("the node to be ready", lambda: ready_nodes(far) == 1)


def write_tar(folder, name, files):
    source = folder / "source"
    for i in range(files):
        where = source / f"d{i // 50}"
        where.mkdir(parents=True, exist_ok=True)
        (where / f"f{i}").write_bytes(b"%d " % i * (i % 400))
        os.utime(where / f"f{i}", (1_700_000_000 + i, 1_700_000_000 + i))  # whole seconds, as an archive keeps them
    subprocess.run(["tar", "-C", str(source), "-cf", str(folder / name), "."], check=True)
    return tree(source)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_an_untar_survives_a_link_that_keeps_breaking(far, seed):
    laptop = far.laptop
    folder = laptop.work / f"untar{seed}"
    folder.mkdir()
    expected = write_tar(folder, "files.tar", FILES)
    # Unpacked three times, so that it lasts longer than a few cuts.
    script = "for i in 1 2 3; do mkdir out$i && tar -C out$i -xf files.tar || exit 9; sleep 0.5; done"
    with Cuts(laptop, seed) as cuts:
        done = laptop.vrun("-C", f"{laptop.inner}/untar{seed}", "sh", "-c", script, timeout=600)
    assert done.returncode == 0, done.stderr
    assert cuts.n > 0
    for i in (1, 2, 3):
        assert differences(expected, tree(folder / f"out{i}")) == []


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_build_survives_a_link_that_keeps_breaking(far, seed):
    laptop = far.laptop
    folder = laptop.work / f"build{seed}"
    write_c_project(folder)
    with Cuts(laptop, 100 + seed) as cuts:
        done = laptop.vrun("make", "-C", f"{laptop.inner}/build{seed}", "-j2", timeout=600)
    assert done.returncode == 0, done.stderr
    assert cuts.n > 0
    assert laptop.plain(f"build{seed}/prog").stdout == b"%d\n" % (sum(range(30)) * 3)
    assert b"up to date" in laptop.plain("make", "-C", f"build{seed}", check=0).stdout


def test_what_is_cached_goes_on_without_the_laptop(far):
    laptop = far.laptop
    again = "/usr/bin/python3 -c 'import json; print(json.dumps([1]))'"
    p = laptop.popen(["vrun", "-n", "cached", "sh", "-c", f"sleep 0; {again}; read x; echo went; sleep 1;"
                      f" for i in 1 2 3; do {again}; done > counted; echo counted"], stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"[1]\n"
    p.stdin.write(b"go\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"went\n"
    laptop.cut()
    wait_for("the command to go on", lambda: "counted" in far.control.out("virga", "task", "logs", "cached"))
    assert p.poll() is None, "what it wrote cannot be back yet"
    laptop.heal()
    out, err = p.communicate(timeout=120)
    assert (p.returncode, out) == (0, b"counted\n"), err
    assert (laptop.work / "counted").read_text() == "[1]\n" * 3


WAITER = "echo started > {0}; echo ready; read x; cat /opt/only-here/file >> {0}; seq 1000 >> {0}; exit 7"


def check_waiter(laptop, p, name):
    out, err = p.communicate(b"go\n", timeout=180)
    assert p.returncode == 7, err
    lines = (laptop.work / name).read_text().splitlines()
    assert lines[:2] == ["started", laptop.path("/opt/only-here/file").read_text().strip()] and len(lines) == 1002, out


def test_virgad_is_killed_during_a_run(far):
    laptop = far.laptop
    p = laptop.popen(["vrun", "sh", "-c", WAITER.format("w1")], stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    os.kill(far.control.pid("virgad"), signal.SIGKILL)
    check_waiter(laptop, p, "w1")


def test_the_agent_is_restarted_during_a_run(far):
    laptop, node = far.laptop, far.nodes[0]
    p = laptop.popen(["vrun", "sh", "-c", WAITER.format("w2")], stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    node.agent.kill()
    node.agent.wait()
    node.restart_agent()
    check_waiter(laptop, p, "w2")


def test_the_service_on_the_laptop_is_killed_during_a_run(far):
    laptop = far.laptop
    p = laptop.popen(["vrun", "sh", "-c", WAITER.format("w3")], stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    service = [pid for pid, name in processes_of(laptop.home) if " mirror" in name and "vrun" not in name]
    assert service, processes_of(laptop.home)
    for pid in service:
        os.kill(pid, signal.SIGKILL)
    laptop.vrun("true", check=0)  # starts another
    check_waiter(laptop, p, "w3")


def test_a_killed_file_daemon_ends_its_tasks_cleanly(far):
    laptop, node = far.laptop, far.nodes[0]
    p = laptop.popen(["vrun", "sh", "-c", "echo ready; read x; cat /opt/only-here/file; echo fine"], stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    daemons = [pid for pid, name in processes_of(node.home) if " fsd" in name]
    assert daemons, processes_of(node.home)
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    out, err = p.communicate(b"go\n", timeout=120)
    # killed, or, when it wanted a page of its program first, by the bus error that this is
    assert p.returncode in (137, 135) and out == b"" and b"file daemon ended" in err, (p.returncode, out, err)
    assert laptop.vrun("cat", "/opt/only-here/file", timeout=120).returncode == 0
