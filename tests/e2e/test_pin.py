"""vbatch from a laptop: what the command needs is copied into the cloud's store, and the laptop may go away for good."""
import os
import shutil
import signal

import pytest
from hosts import far_world, ready_nodes, wait_for
from virga import children_of, read_bytes

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
    for host in far.hosts:
        host.heal()
    wait_for("the node to be ready", lambda: ready_nodes(far) == 1)
    for name in os.listdir(far.laptop.work):
        path = far.laptop.work / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return far.laptop


def end_of(far, task):
    return far.control.wait_state(task, "succeeded", "failed", "cancelled")


def holds(far):
    return [name for top, _, files in os.walk(f"{far.control.home}/control/env/u") if top.endswith("/hold") for name in files]


def test_the_client_goes_away_for_good_and_the_task_ends_well(far, laptop):
    (laptop.work / "sub").mkdir()
    (laptop.work / "sub" / "data").write_text("of the project\n" * 50000)
    (laptop.work / "main.py").write_text("import json\nprint(json.dumps(len(open('sub/data').read())))\n")
    script = "sleep 3; cat /opt/only-here/file sub/data | wc -c; laptop-tool x; python3 main.py"
    laptop.vrun("sh", "-c", script, check=0)  # what it uses is known then
    done = laptop.run(["vbatch", "--snapshot", "sh", "-c", script], check=0)
    assert b"what it writes into them is dropped" in done.stderr
    task = done.stdout.decode().strip()
    laptop.cut()
    t = end_of(far, task)
    log = far.control.out("virga", "task", "logs", task)
    laptop.heal()
    assert t["state"] == "succeeded", (t, log)
    assert log == "750016\ntool of the laptop: x\n750000"


def test_what_never_came_is_an_error_that_names_it(far, laptop):
    laptop.path("/opt/only-here/a/b/c").mkdir(parents=True)
    laptop.path("/opt/only-here/a/b/c/rare").write_bytes(os.urandom(100000))
    (laptop.work / "go.sh").write_text("sleep 3; cd /opt/only-here/a/b; cat c/ra?e >/dev/null && echo came\n")
    task = laptop.run(["vbatch", "--snapshot", "sh", "go.sh"], check=0).stdout.decode().strip()
    laptop.cut()
    t = end_of(far, task)
    log = far.control.run(["virga", "task", "logs", task])
    laptop.heal()
    assert t["state"] == "failed", (t, log)
    text = (log.stdout + log.stderr).decode() + str(t)
    assert "/opt/only-here/a/b" in text and "never came into the cloud's store" in text, text


def test_a_missing_file_is_asked_for_while_the_client_is_there(far, laptop):
    laptop.path("/opt/only-here/d/e/f").mkdir(parents=True)
    laptop.path("/opt/only-here/d/e/f/rare").write_bytes(b"rare\n" * 1000)
    task = laptop.run(["vbatch", "--snapshot", "sh", "-c", "cat /opt/only-here/d/e/f/ra?e | wc -c"], check=0).stdout.decode().strip()
    assert end_of(far, task)["state"] == "succeeded"
    assert far.control.out("virga", "task", "logs", task) == "5000"


def test_the_control_plane_and_its_store_die_while_the_client_is_gone(far, laptop):
    (laptop.work / "late").write_text("late\n")
    task = laptop.run(["vbatch", "--snapshot", "sh", "-c", "sleep 4; cat late"], check=0).stdout.decode().strip()
    laptop.cut()
    control = far.control
    old = control.pid("virgad")
    envd = [p for p in children_of(old) if b"envd" in read_bytes(f"/proc/{p}/cmdline")]
    os.kill(envd[0], signal.SIGKILL)
    os.kill(old, signal.SIGKILL)
    wait_for("another virgad", lambda: control.pid("virgad") not in (None, old))
    wait_for("its answers", lambda: control.virga("status").returncode == 0)
    t = end_of(far, task)
    laptop.heal()
    assert t["state"] == "succeeded", (t, control.out("virga", "task", "logs", task))
    assert control.out("virga", "task", "logs", task) == "late"
    wait_for("what it held to be let go", lambda: holds(far) == [])


def test_without_a_snapshot_the_laptop_serves_on_and_gets_what_was_written(far, laptop):
    (laptop.work / "in").write_text("of the project\n")
    task = laptop.run(["vbatch", "sh", "-c", "cat in > out; echo more >> out"], check=0).stdout.decode().strip()
    t = end_of(far, task)
    assert t["state"] == "succeeded", t
    assert (laptop.work / "out").read_text() == "of the project\nmore\n"
