"""Pools of class mps on a simulated card: one server a card, there while a share is, and a limit that no program raises.

NVIDIA's program is a stand-in (tests/gpu/mps) that knows the commands it is given and no others."""
import os
import signal

import pytest
from virga import Cloud, LONG, ROOT, processes_of, read_bytes, wait_for

CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: default
  - name: mps
    class: mps
"""
# A client that has no environment, and one that has what it was given; each asks for the whole card first.
CLIENT = """
import os, socket
def ask(percent):
    s = socket.socket(socket.AF_UNIX)
    s.connect("/tmp/nvidia-mps/control")
    s.sendall(f"{percent}\\n".encode())
    return s.makefile().readline().strip()
print(ask(100), ask(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]), os.environ["CUDA_MPS_PIPE_DIRECTORY"])
"""
PROGRAM = "nvidia-cuda-mps-control"


def with_program(**kw):
    cloud = Cloud(CONFIG, **kw)
    cloud.env["PATH"] = f"{ROOT}/tests/gpu/mps:{cloud.env['PATH']}"
    return cloud


@pytest.fixture(scope="module")
def cloud():
    cloud = with_program()
    cloud.up("--gpus", "fake:1")
    wait_for("the card to be seen", lambda: cloud.json("gpu", "list")[0]["mem_bytes"])
    yield cloud
    cloud.down()
    assert not daemons(cloud)
    cloud.remove()


@pytest.fixture(autouse=True)
def quiet(cloud):
    yield
    for name in ("commands", "broken", "deaf", "fault"):
        (logs(cloud) / name).unlink(missing_ok=True)
    wait_for("the server to be gone", lambda: not daemons(cloud))


def logs(cloud):
    return cloud.home / "node" / "mps" / "0" / "log"


def daemons(cloud):
    return [pid for pid, line in processes_of(cloud.home) if PROGRAM in line and "-f" in line.split()]


def commands(cloud):
    """What it was told to do; questions come when they come."""
    return [line for line in read_bytes(logs(cloud) / "commands").decode().splitlines() if not line.startswith("get_")]


def client(cloud, share):
    return cloud.out("vrun", "-P", "mps", "--gpus", share, "python3", "-c", CLIENT).split()


def hold(cloud, share, name):
    gate = cloud.work / name
    task = cloud.out("vbatch", "-P", "mps", "--gpus", share, "sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
    cloud.wait_state(task, "running")
    return task, gate


def test_a_share_has_a_server_that_gives_it_no_more(cloud):
    assert client(cloud, "0.3") == ["30.0", "30.0", "/tmp/nvidia-mps"]
    wait_for("it to be told to go", lambda: commands(cloud) == [
        "set_default_active_thread_percentage 30.0", "quit -t 2"])
    wait_for("it to go", lambda: not daemons(cloud))


def test_the_largest_share_on_the_card_is_the_limit(cloud):
    small, small_gate = hold(cloud, "0.2", "small")
    assert client(cloud, "0.125") == ["20.0", "12.5", "/tmp/nvidia-mps"]
    assert client(cloud, "0.7") == ["70.0", "70.0", "/tmp/nvidia-mps"]
    wait_for("it to be lowered", lambda: commands(cloud)[-1] == "set_active_thread_percentage 4242 20.0")
    assert client(cloud, "0.1") == ["20.0", "10.0", "/tmp/nvidia-mps"]
    assert len(daemons(cloud)) == 1, "a card has one"
    small_gate.touch()
    cloud.wait_state(small, "succeeded")


def test_who_has_a_share_cannot_command_the_server(cloud):
    done = cloud.vrun("-P", "mps", "--gpus", "0.3", "python3", "-c",
                      "import socket; socket.socket(socket.AF_UNIX).connect('/tmp/nvidia-mps/control_privileged')")
    assert done.returncode == 1 and b"PermissionError" in done.stderr


def test_its_memory_can_be_changed_and_its_part_of_the_card_cannot(cloud):
    task, gate = hold(cloud, "0.2", "changed")
    done = cloud.virga("task", "share", task, "--gpus", "0.4")
    assert done.returncode == 125 and b"only --gpu-mem can be changed" in done.stderr
    assert "2 GiB" in cloud.out("virga", "task", "share", task, "--gpu-mem", "2G")
    gate.touch()
    cloud.wait_state(task, "succeeded")


def test_a_server_that_dies_takes_its_tasks_with_it_and_says_so(cloud):
    one, _ = hold(cloud, "0.3", "never1")
    two, _ = hold(cloud, "0.3", "never2")
    other = cloud.out("vbatch", "sleep", "100")
    cloud.wait_state(other, "running")
    os.kill(daemons(cloud)[0], signal.SIGKILL)
    for task in (one, two):
        t = cloud.wait_state(task, "failed")
        assert "GPU 0's MPS server, which all tasks on that card share, has ended" in t["reason"], t
    assert cloud.task(other)["state"] == "running"
    assert client(cloud, "0.3")[0] == "30.0", "the next share has a server of its own"
    cloud.virga("task", "cancel", other, check=0)


def test_a_program_that_brings_the_server_down_ends_its_neighbours_with_the_reason(cloud):
    task, _ = hold(cloud, "0.3", "never3")
    client(cloud, "0.3")  # there is a server now
    (logs(cloud) / "fault").touch()
    assert "was brought down by an error in one of their programs" in cloud.wait_state(task, "failed")["reason"]
    (logs(cloud) / "fault").unlink()
    assert client(cloud, "0.3")[0] == "30.0"


def test_a_server_that_does_not_start_is_a_reason(cloud):
    logs(cloud).mkdir(parents=True, exist_ok=True)
    (logs(cloud) / "broken").touch()
    done = cloud.vrun("-P", "mps", "--gpus", "0.3", "true")
    assert done.returncode == 125 and b"ended while it was started" in done.stderr, done


@pytest.mark.skipif(not LONG, reason="waits for ten seconds; VIRGA_TEST_LONG=1")
def test_a_server_that_does_not_answer_is_ended(cloud):
    task, _ = hold(cloud, "0.3", "never4")
    (logs(cloud) / "deaf").touch()
    done = cloud.vrun("-P", "mps", "--gpus", "0.5", "true")
    assert done.returncode == 125 and b"did not answer, and was ended" in done.stderr, done
    assert "did not answer" in cloud.wait_state(task, "failed")["reason"]
    (logs(cloud) / "deaf").unlink()
    assert client(cloud, "0.3")[0] == "30.0"


def test_tasks_and_server_outlive_the_agent(cloud):
    task, gate = hold(cloud, "0.4", "outlives")
    server = daemons(cloud)
    agent = cloud.pid("agent")
    os.kill(agent, signal.SIGKILL)
    wait_for("another agent", lambda: cloud.pid("agent") not in (None, agent))
    assert client(cloud, "0.5")[0] == "50.0"
    assert daemons(cloud) == server and cloud.task(task)["state"] == "running"
    gate.touch()
    cloud.wait_state(task, "succeeded")


def test_a_node_without_the_program_says_what_is_missing():
    cloud = Cloud(CONFIG)
    try:
        cloud.up("--gpus", "fake:1")
        wait_for("the card", lambda: cloud.json("gpu", "list")[0]["mem_bytes"])
        done = cloud.vrun("-P", "mps", "--gpus", "0.3", "true")
        assert done.returncode == 125 and b"the node has no nvidia-cuda-mps-control" in done.stderr
    finally:
        cloud.down()
        cloud.remove()
