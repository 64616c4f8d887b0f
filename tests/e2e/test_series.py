"""What tasks and nodes use over time: looked at while they run, kept when they have ended, and nothing at all while nothing runs."""
import re
import subprocess

import pytest
from virga import LONG, Cloud, read_pid, wait_for

MIB = 1 << 20
# Uses a CPU, then holds memory: what it does shows in its numbers.
WORK = ("import time,sys\nend=time.monotonic()+2.5\nwhile time.monotonic()<end: pass\n"
        "b=bytearray(200<<20)\nprint('held',flush=True)\nsys.stdin.read()\n")


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud("heartbeat: 500ms\n")
    cloud.up("--gpus", "fake:2")
    yield cloud
    cloud.remove()


def series(cloud, *args):
    got = cloud.json("task", "plot", *args)
    lengths = {len(v) for v in got.values() if isinstance(v, list)}
    assert len(lengths) == 1, got
    assert got["when_usec"] == sorted(set(got["when_usec"]))
    return got


def told(values):
    return [v for v in values if v >= 0]


def test_a_task_that_runs_and_then_ended(cloud):
    task = cloud.popen(["vrun", "--cpus", "1", "--mem", "1G", "-n", "worker", "python3", "-c", WORK], stdin=subprocess.PIPE)
    wait_for("the task to run", lambda: any(t["name"] == "worker" and t["state"] == "running" for t in cloud.json("task", "list")))
    got = wait_for("CPU and memory in its numbers", lambda: (s := series(cloud, "worker")) and max(told(s["cpu_milli"]), default=0) > 100
                   and max(told(s["mem_bytes"]), default=0) > 200 * MIB and s)
    assert got["mem_bytes_limit"] == 1 << 30 and got["cpu_milli_limit"] == 1000
    assert not told(got["gpu_percent"])  # it has none
    top = wait_for("it in the live table", lambda: [t for t in cloud.json("task", "top") if (t["mem_bytes"] or 0) > 200 * MIB])
    assert len(top) == 1 and top[0]["cpu_milli"] is not None
    text = cloud.out("virga", "task", "top")
    assert "worker" in text and re.search(r"[0-9.]+ MiB of 1(\.0)? GiB", text), text
    plot = cloud.out("virga", "task", "plot", "worker")
    assert re.search(r"^memory .*[\u2581-\u2588].* of 1(\.0)? GiB, most 2", plot, re.M), plot
    plain = cloud.out("virga", "task", "plot", "worker", env={**cloud.env, "LC_ALL": "C"})
    assert plain.isascii() and "memory" in plain
    task.stdin.close()
    assert task.wait(60) == 0
    task.stdout.close(), task.stderr.close()
    ended = wait_for("its end", lambda: [t for t in cloud.json("task", "list", "-a") if t["name"] == "worker" and t["state"] == "succeeded"])
    kept = series(cloud, ended[0]["id"])
    assert max(told(kept["mem_bytes"])) > 200 * MIB and 2 <= len(kept["when_usec"]) <= 240
    # The control plane forgets nothing of it when it begins anew.
    cloud.virga("down", check=0)
    cloud.up("--gpus", "fake:2")
    assert series(cloud, ended[0]["id"]) == kept


def test_a_gpu_and_the_node(cloud):
    cloud.out("vrun", "-d", "--gpus", "1", "-n", "card", "sleep", "600")
    cloud.wait_state("card", "running")
    got = wait_for("power of its GPU", lambda: (s := series(cloud, "card")) and told(s["power_mw"]) and s)
    assert told(got["gpu_percent"]) and told(got["gpu_mem_bytes"]) and got["gpu_mem_bytes_limit"] > 0
    node = cloud.json("node", "list")[0]["name"]
    got = wait_for("the node's own", lambda: (s := series(cloud, "--node", node)) and told(s["cpu_milli"]) and told(s["power_mw"]) and s)
    assert 0 < max(got["mem_bytes"]) <= got["mem_bytes_limit"] * 2 and got["cpu_milli_limit"] >= 1000
    cloud.virga("task", "cancel", "card", check=0)


def test_what_is_refused(cloud):
    for args, words in ((["nothing"], "no task 'nothing'"), (["--node", "nowhere"], "nowhere"), ([], "TASK"), (["a", "--node", "b"], "")):
        done = cloud.virga("task", "plot", *args)
        assert done.returncode != 0 and words.encode() in done.stderr, done


@pytest.mark.skipif(not LONG, reason="half a minute of watching nothing: VIRGA_TEST_LONG=1")
def test_an_idle_agent_does_not_look(cloud):
    """By the system calls of an agent that has nothing to do: no cgroup, no /proc file of the node is read."""
    wait_for("nothing to run", lambda: not cloud.json("task", "list"))
    agent = read_pid(cloud.home / "node" / "pid")
    looks = wait_for("a pause of 11 s without a look", lambda: count_opens(agent, 11) == 0, seconds=120)
    assert looks is True
    cloud.out("vrun", "-d", "-n", "busy", "sleep", "600")
    assert wait_for("looks while a task runs", lambda: count_opens(agent, 11), seconds=60) > 0
    cloud.virga("task", "cancel", "busy", check=0)


def count_opens(pid, seconds):
    done = subprocess.run(["timeout", "-s", "INT", str(seconds), "strace", "-qq", "-e", "trace=openat", "-p", str(pid)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return len(re.findall(r'"(?:/proc/stat|/proc/meminfo|[^"]*(?:cpuacct.usage|cpu.stat|memory.current|memory.usage_in_bytes))"', done.stderr))
