"""The queue as people see it: order, shares, reasons; thousands of tasks that wait; a configuration that changes
under them."""
import re
import time

from virga import wait_for

CONFIG = """
limits: {tasks: 200000, user_tasks: 200000}
pools:
  - name: default
    shape: {cpus: 1, mem: 64M}
  - name: side
    shape: {cpus: 1, mem: 64M}
default_pool: default
"""


def fill(cloud, pool="default"):
    """Takes every slot of the pool; returns the group that holds them."""
    slots = next(p for p in cloud.json("pool", "list") if p["name"] == pool)["total_slots"]
    group = cloud.out("vbatch", "-n", "holder", "-P", pool, "-N", str(slots), "sleep", "600")
    wait_for("every slot to be taken", lambda: cloud.task(group)["progress"]["running"] == slots)
    return group


def cancel_all(cloud):
    cloud.virga("task", "cancel", "--all", check=0)
    wait_for("everything to end", lambda: not cloud.json("task", "list"), 120)


def test_who_waits_is_told_why_and_the_queue_shows_the_order(cloud):
    fill(cloud)
    first = cloud.out("vbatch", "-n", "first", "true")
    urgent = cloud.out("vbatch", "-n", "urgent", "--priority", "90", "true")
    cloud.wait_state(first, "queued")
    why = cloud.virga("task", "why", first, check=0).stdout.decode()
    assert len(why.splitlines()[0]) > 10 and "default" in why, why
    answer = cloud.json("task", "why", first)
    assert answer["task"] == first and answer["state"] == "queued" and answer["code"]
    queue = cloud.json("queue")
    order = [row["task"] for row in queue["queue"]]
    assert order.index(urgent) < order.index(first)
    assert queue["total"] == 2
    assert any(t["running"] and t["queued"] for t in queue["tenants"])
    table = cloud.out("virga", "queue")
    assert re.search(r"^TENANT +RUNNING +QUEUED", table, re.M) and "urgent" in table
    assert cloud.json("queue", "-P", "side")["queue"] == []
    cancel_all(cloud)


def test_vrun_says_that_it_waits(cloud):
    fill(cloud)
    p = cloud.popen(["vrun", "echo", "hi"])
    line = p.stderr.readline().decode()
    assert line.startswith("vrun: ") and "virga task why" in line, line
    cancel_all(cloud)
    p.wait(timeout=60)


def test_thousands_that_wait_are_listed_found_and_cancelled(cloud):
    fill(cloud)
    keep = cloud.out("vbatch", "-N", "2000", "-l", "half=keep", "true")
    drop = cloud.out("vbatch", "-N", "2000", "-l", "half=drop", "true")
    assert cloud.task(drop)["progress"]["queued"] == 2000
    assert len(cloud.json("task", "list", "--flat", "--limit", "50")) == 50
    assert [t["id"] for t in cloud.json("task", "list", "-l", "half=drop")] == [drop]
    cloud.virga("task", "cancel", "-l", "half=drop", check=0)
    info = cloud.wait_state(drop, "cancelled")
    assert info["progress"]["cancelled"] == 2000
    assert cloud.task(keep)["progress"]["queued"] == 2000
    cancel_all(cloud)


def test_a_reload_drops_no_task_and_a_mistake_changes_nothing(cloud):
    path = cloud.home / "config.yaml"
    good = path.read_text()
    holder = fill(cloud)
    waiting = [cloud.out("vbatch", "sh", "-c", f"echo {i} >> reloaded") for i in range(5)]
    assert cloud.virga("config", "check").returncode == 0
    for weight in (10, 200, 50):
        path.write_text(good + f"queues:\n  - name: main\n    weight: {weight}\n")
        cloud.virga("config", "reload", check=0)
    path.write_text(good + "quues: []\n")
    check = cloud.virga("config", "check")
    assert check.returncode == 125 and b"queues" in check.stderr and b"config.yaml" in check.stderr
    refused = cloud.virga("config", "reload")
    assert refused.returncode == 125 and b"quues" in refused.stderr
    path.write_text(good)
    cloud.virga("config", "reload", check=0)
    assert {cloud.task(task)["state"] for task in waiting} == {"queued"}
    assert cloud.task(holder)["state"] == "running"
    cloud.virga("task", "cancel", holder, check=0)
    for task in waiting:
        assert cloud.virga("task", "wait", task).returncode == 0
    assert sorted((cloud.work / "reloaded").read_text().split()) == ["0", "1", "2", "3", "4"]


def test_reload_again_and_again_while_tasks_come_and_go(cloud):
    p = cloud.popen(["bash", "-c", "seq 300 | xargs -P 4 -I{} vbatch -q -P side -l under=reload true"])
    n = 0
    while p.poll() is None:
        cloud.virga("config", "reload", check=0)
        n += 1
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    ids = out.decode().split()
    assert len(set(ids)) == 300 and n > 0
    done = lambda: [t["state"] for t in cloud.json("task", "list", "-a", "-l", "under=reload", "--limit", "1000")]
    wait_for("every task to end", lambda: set(done()) <= {"succeeded"}, 120)
    assert len(done()) == 300
