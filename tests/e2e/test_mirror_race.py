"""One project, written by several tasks at once: on one node they are as processes of one machine, on two nodes nothing is lost."""
import os
import shutil
import signal

import pytest
from hosts import far_world, only

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]

ROUNDS = 6
# `set -C`: the shell opens with O_EXCL
RACER = "set -C; echo ready; while read name; do if echo $0 > $name; then echo won; else echo lost; fi; done 2>/dev/null"


# A shell would not look at what close says.
CLOSER = """
import itertools, os
print("ready", flush=True)
for i in itertools.count():
    f = os.open(f"closed-{i}", os.O_CREAT | os.O_WRONLY)
    os.write(f, b"%d\\n" % i)
    os.close(f)
    print(i, flush=True)
"""


@pytest.fixture(scope="module")
def far():
    network = far_world(nodes=2)
    yield network
    network.control.virga("down")
    network.close()


def start(laptop, *argv):
    p = laptop.popen(["vrun", *argv], stdin=-1)
    assert p.stdout.readline() == b"ready\n", p.communicate(timeout=60)
    return p


def tell(p, line):
    p.stdin.write(line.encode() + b"\n")
    p.stdin.flush()


def end(p):
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    return err


def race(far, *options):
    """Both make the same files with O_EXCL: for each who won, and what was said in the end."""
    racers = []
    for node, name in zip(far.nodes, ("one", "two")):
        only(far, node)
        racers.append(start(far.laptop, *options, "sh", "-c", RACER, name))
    won = []
    for i in range(ROUNDS):
        for p in racers:
            tell(p, f"race{len(options)}-{i}")
        won.append([p.stdout.readline() == b"won\n" for p in racers])
    return won, b"".join(end(p) for p in racers)


def test_two_nodes_make_the_same_file_and_both_are_kept(far):
    won, said = race(far)
    for i, who in enumerate(won):
        name = f"race0-{i}"
        copies = list(far.laptop.work.glob(f"{name}.conflict-*"))
        kept = sorted(p.read_text().strip() for p in [far.laptop.work / name, *copies])
        assert kept == [n for n, w in zip(("one", "two"), who) if w], f"{name}: {who}, {copies}"
        assert all(c.name.encode() in said for c in copies), said


def test_with_sync_exactly_one_of_two_nodes_makes_it(far):
    won, _ = race(far, "--sync")
    for i, who in enumerate(won):
        assert sum(who) == 1, f"round {i}: {who}"
        assert (far.laptop.work / f"race1-{i}").read_text() == ("one\n" if who[0] else "two\n")
    assert not list(far.laptop.work.glob("race1-*.conflict-*"))


@pytest.mark.parametrize("how", ["flock", "fcntl"])
def test_locks_hold_between_tasks_of_one_node(far, how):
    laptop = far.laptop
    only(far, far.nodes[0])
    lock = {"flock": "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl": "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"}[how]
    take = f"import fcntl, sys; f = open('locked', 'w'); {lock}; print('ready', flush=True); sys.stdin.read()"
    holder = start(laptop, "/usr/bin/python3", "-c", take)
    second = laptop.vrun("/usr/bin/python3", "-c", take)
    assert second.returncode == 1 and b"BlockingIOError" in second.stderr, second.stderr
    end(holder)
    assert laptop.vrun("/usr/bin/python3", "-c", take).stdout == b"ready\n"


def test_with_sync_a_killed_daemon_loses_nothing_that_was_closed(far):
    laptop, node = far.laptop, far.nodes[0]
    only(far, node)
    p = start(laptop, "--sync", "/usr/bin/python3", "-c", CLOSER)
    for _ in range(100):
        p.stdout.readline()
    for pid in node.daemons():
        os.kill(pid, signal.SIGKILL)
    out, _ = p.communicate(timeout=60)
    assert p.returncode != 0
    last = max([99, *(int(x) for x in out.split())])
    for i in range(last + 1):
        assert (laptop.work / f"closed-{i}").read_text() == f"{i}\n"
