"""How often a command waits for the laptop, and how much travels: counted, not timed, so that it is exact on any machine."""
import os
import shutil

import pytest

COMMANDS = {
    "python": ["/usr/bin/python3", "-E", "-c", "import json, ssl, sqlite3, asyncio, unittest, email, http.server, xml.dom.minidom"],
    "gcc": ["gcc", "-O1", "-c", "-o", "t.o", "t.c"],
    "git": ["git", "-C", "counted", "status", "--porcelain"],
}
# Pages of a program that is complete on the node are read by the kernel alone, so a trace may lack some of them: the compiler's
# big programs are fetched in part by other runs.
MOST = {"gcc": 16}


@pytest.fixture(scope="module", autouse=True)
def project(far):
    laptop = far.laptop
    (laptop.work / "t.c").write_text("#include <stdio.h>\nint main(void) { puts(\"t\"); }\n")
    for i in range(1000):
        (laptop.work / f"counted/d{i % 50}").mkdir(parents=True, exist_ok=True)
        (laptop.work / f"counted/d{i % 50}/f{i}").write_text(f"{i}\n")
    laptop.plain("sh", "-c", "cd counted && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm all"
                 " && git status", check=0)


def waited(node):
    """How often a program had to wait for something that was not on its way already."""
    counters = node.counters()
    return counters.get("demands", 0) - counters.get("met", 0)


def run(far, argv):
    """(demand round trips, bytes over the laptop's link) of one vrun."""
    laptop, node = far.laptop, far.nodes[0]
    before, bytes_before = waited(node), laptop.traffic()
    done = laptop.vrun(*argv, env={**laptop.env, "PYTHONDONTWRITEBYTECODE": "1", "GIT_OPTIONAL_LOCKS": "0"})
    assert done.returncode == 0, done.stderr
    return waited(node) - before, laptop.traffic() - bytes_before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_known_command_waits_for_nothing_on_a_node_that_has_nothing(far, name):
    node, argv = far.nodes[0], COMMANDS[name]
    node.forget()
    first, _ = run(far, argv)
    assert first > 10, "the control: a command that was never run has to ask"
    run(far, argv)
    node.forget()
    cold, cold_bytes = run(far, argv)
    assert cold <= MOST.get(name, 2)
    warm, warm_bytes = run(far, argv)
    assert warm == 0
    assert warm_bytes < cold_bytes / 4


def test_a_big_file_that_is_pushed_travels_once(far):
    laptop, node, size = far.laptop, far.nodes[0], 48 << 20
    (laptop.work / "big").write_bytes(os.urandom(size))
    argv = ["dd", "if=big", "of=/dev/null", "bs=1M"]
    node.forget()
    run(far, argv)
    run(far, argv)
    node.forget()
    asked, travelled = run(far, argv)
    (laptop.work / "big").unlink()
    assert asked <= 2
    assert size < travelled < size * 1.03 + (2 << 20)


def test_folders_that_the_laptop_removed_are_not_asked_for(far):
    laptop, work = far.laptop, far.laptop.work
    for i in range(200):
        (work / f"packed/d{i // 50}/e{i // 2}").mkdir(parents=True, exist_ok=True)
        (work / f"packed/d{i // 50}/e{i // 2}/f{i}").write_text(f"{i}\n")
    laptop.plain("sh", "-c", "tar -C packed -cf packed.tar . && rm -rf packed && mkdir unpacked", check=0)
    argv = ["tar", "-C", "unpacked", "-xf", "packed.tar"]
    run(far, argv)
    assert len(list((work / "unpacked").rglob("f*"))) == 200
    least = 104  # so many there were when every folder was asked for
    for _ in range(4):  # a command that begins before the kernel has told of the removal has to ask
        shutil.rmtree(work / "unpacked")
        (work / "unpacked").mkdir()
        asked, _ = run(far, argv)
        least = min(least, asked)
        if least < 40:
            break
    assert least < 40
    assert sorted(int(f.read_text()) for f in (work / "unpacked").rglob("f*")) == list(range(200))


def test_a_warm_command_brings_and_asks_nothing(far):
    argv = COMMANDS["python"]
    run(far, argv)
    asked, warm = run(far, argv)
    assert asked == 0 and warm < 1 << 20


def test_a_daemon_that_was_replaced_is_no_burden_for_later_commands(far):
    """What the dead one had been told is not called outdated at every run."""
    argv = COMMANDS["python"]
    run(far, argv)
    for _ in range(3):
        far.nodes[0].end_daemons()
        run(far, argv)
    run(far, argv)
    asked, _ = run(far, argv)
    assert asked == 0
