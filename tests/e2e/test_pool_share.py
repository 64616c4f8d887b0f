"""Pools that share GPUs, seen from the command line, on simulated cards: what is given, what is refused and why, who
waits for what, what changes under a running task, and that none of it is forgotten."""
import os
import signal
import sqlite3

import pytest
from virga import Cloud, wait_for

GIB = 1 << 30
CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: whole
  - name: part
    class: shared
    shape: {gpus: 0.25}
    max: {gpus: 0.9}
    gpu_turn: 500us
"""


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:2")
    wait_for("the cards to be seen", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 * GIB] * 2)
    yield cloud
    cloud.remove()


@pytest.fixture(autouse=True)
def nothing_left(cloud):
    yield
    cloud.virga("task", "cancel", "--all", "--grace", "0", check=0)
    wait_for("everything to end", lambda: not cloud.json("task", "list"))


def batch(cloud, *argv):
    return cloud.out("vbatch", "-q", *argv, "sleep", "100")


def running(cloud, *argv):
    task = batch(cloud, *argv)
    return cloud.wait_state(task, "running")


def refusal(result):
    assert result.returncode == 125, result
    lines = result.stderr.decode().strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_share_has_its_part_of_the_card_and_others_have_the_rest(cloud):
    a = running(cloud, "-P", "part", "--gpus", "0.3")
    assert (a["want"]["gpu_milli"], a["want"]["gpu_mem_bytes"], a["want"]["gpus"]) == (300, 24 * GIB, 0)
    b = running(cloud, "-P", "part", "--gpus", "0.6", "--gpu-mem", "50G")
    assert b["gpus"] == a["gpus"], "a card that is shared already comes first"
    assert b["want"]["gpu_mem_bytes"] == 50 * GIB and b["gpu_hard"] is False
    c = running(cloud, "-P", "part")
    assert c["want"]["gpu_milli"] == 250 and c["gpus"] != a["gpus"]
    d = batch(cloud, "-P", "whole", "--gpus", "1")
    assert cloud.task(d)["state"] == "queued", "both cards are shared"
    holders = cloud.json("gpu", "list")[a["gpus"][0]]["holders"]
    assert sorted(h["gpu_milli"] for h in holders) == [300, 600]
    assert "2 tasks, 0.9 of it" in cloud.out("virga", "gpu", "list")
    why = cloud.out("virga", "task", "why", batch(cloud, "-P", "part", "--gpus", "0.8"))
    assert "part" in why and "held by" in why, why


def test_what_cannot_be_given_is_refused_with_where_it_can(cloud):
    assert refusal(cloud.vrun("-P", "whole", "--gpus", "0.3", "true")).endswith(
        "pool 'whole' gives whole GPUs only (class dedicated): ask for --gpus 1, or for a share in pool 'part'")
    assert refusal(cloud.vrun("-P", "part", "--gpus", "1", "true")).endswith(
        "ask for less than 1, such as --gpus 0.5, or for whole GPUs in pool 'whole'")
    assert "at most 0.9 of a GPU" in refusal(cloud.vrun("-P", "part", "--gpus", "0.95", "true"))
    assert "no node of pool 'part' has a GPU with 90 GiB" in refusal(cloud.vrun("-P", "part", "--gpu-mem", "90G", "true"))
    for ask in (("-P", "whole", "--gpus", "1"), ("-P", "part", "--gpus", "0.3")):
        assert "--gpu-hard is for a share in a pool of class mps" in refusal(cloud.vrun(*ask, "--gpu-hard", "true"))
    pool = {p["name"]: p for p in cloud.json("pool", "list")}
    assert pool["part"]["class"] == "shared" and pool["part"]["shape"]["gpu_milli"] == 250
    assert "own context" in pool["part"]["fault_domain"] and pool["part"]["total_slots"] == 8
    assert "own context" in cloud.out("virga", "pool", "list")


def test_a_share_changes_under_its_task_and_outlives_virgad(cloud):
    a = running(cloud, "-P", "part", "--gpus", "0.3")["id"]
    b = running(cloud, "-P", "part", "--gpus", "0.5")["id"]
    assert "can have at most 0.5 of it and 40 GiB" in refusal(cloud.virga("task", "share", a, "--gpus", "0.6"))
    assert "give 0.001 to 0.999" in refusal(cloud.virga("task", "share", a, "--gpus", "1"))
    cloud.virga("task", "share", b, "--gpus", "0.2", "--gpu-mem", "8G", check=0)
    grow = ["virga", "task", "share", a, "--gpus", "0.8", "--gpu-mem", "60G"]
    said = wait_for("what was given up to be free", lambda: (r := cloud.run(grow)).returncode == 0 and r.stdout.decode().strip())
    assert said == f"{a} has 0.8 GPU, 60 GiB GPU memory"
    os.kill(cloud.pid("virgad"), signal.SIGKILL)
    wait_for("virgad to be back", lambda: cloud.virga("status").returncode == 0)
    want = cloud.task(a)["want"]
    assert (want["gpu_milli"], want["gpu_mem_bytes"]) == (800, 60 * GIB)
    wait_for("the node to be back", lambda: cloud.json("node", "list")[0]["state"] == "ready")
    assert cloud.task(a)["state"] == "running"
    assert "can have at most 0.8 of it" in refusal(cloud.virga("task", "share", a, "--gpus", "0.85")), "counted as it was changed"
    cloud.virga("task", "cancel", a, b, "--grace", "0", check=0)
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    row = wait_for("the ledger's row", lambda: db.execute(
        "SELECT gpu_milli, gpu_held, until_usec-from_usec FROM attempts WHERE task=?", (a,)).fetchone())
    assert row[0] == 800 and 300 * row[2] < row[1] < 800 * row[2], "some of its time at 0.3, the rest at 0.8"
    assert any(f"task {a}: share 0.8, 60 GiB" in line for line in audit(db)), audit(db)


def audit(db):
    return [r[0] for r in db.execute("SELECT what FROM audit")]


def test_a_pool_with_tasks_keeps_its_class(cloud):
    running(cloud, "-P", "part", "--gpus", "0.3")
    config = cloud.home / "config.yaml"
    config.write_text(CONFIG.replace("class: shared", "class: dedicated").replace("0.25", "1").replace("0.9", "1")
                      .replace("    gpu_turn: 500us\n", ""))
    try:
        said = cloud.virga("config", "reload")
        assert said.returncode and "a pool of class dedicated, and it has 1 unfinished task" in said.stderr.decode(), said
    finally:
        config.write_text(CONFIG)
        cloud.virga("config", "reload", check=0)
