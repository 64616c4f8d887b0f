"""GPUs over the whole cloud, on simulated cards: found, held, measured, drained, given back when idle.

A simulated card does what its file says (node/fake-gpus/INDEX); the process that looks at it, the agent, virgad and the
commands are the real ones."""
import json
import os
import signal
import sqlite3

import pytest
from virga import Cloud, Terminal, read_bytes, status_field, pids, wait_for

CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: default
  - name: strict
    idle_warn: 1s
    idle_end: 2s
  - name: exempt
    idle_end: 1s
    idle_exempt: [root, main]
"""


class Cards:
    def __init__(self, cloud):
        self.cloud = cloud
        self.folder = cloud.home / "node" / "fake-gpus"

    def say(self, index, **words):
        self.folder.mkdir(exist_ok=True)
        new = self.folder / f".{index}"
        new.write_text("".join(f"{k} {v}\n" for k, v in words.items()))
        new.rename(self.folder / str(index))

    def quiet(self):
        for f in self.folder.glob("[0-9]*"):
            f.unlink()

    def state(self, index):
        return self.cloud.json("gpu", "list")[index]


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:3")
    yield cloud
    cloud.remove()


@pytest.fixture
def cards(cloud):
    cards = Cards(cloud)
    wait_for("the cards to be seen and free", lambda: [(g["mem_bytes"], g["state"]) for g in cloud.json("gpu", "list")] == [(80 << 30, "free")] * 3)
    yield cards
    cards.quiet()
    for g in cloud.json("gpu", "list"):
        if g["state"] == "drained":
            cloud.virga("gpu", "resume", f"{g['node']}:{g['index']}", check=0)


def batch(cloud, *argv):
    return cloud.out("vbatch", *argv)


def watcher(cloud):
    home = str(cloud.home).encode()
    found = [p for p in pids() if b"gpu-watch" in (c := read_bytes(f"/proc/{p}/cmdline")) and home in c]
    return found[0] if found else None


def test_what_is_simulated_says_so_everywhere(cloud, cards):
    for argv in (["gpu", "list"], ["gpu", "top"], ["node", "list"]):
        assert "simulated" in cloud.out("virga", *argv).lower(), argv
    g = cards.state(0)
    assert g["simulated"] is True and g["vendor"] == "simulated"
    assert g["numa"] is None and g["driver"] == "", "what is not known is not made up"


def test_top_shows_what_the_cards_do_and_for_whom(cloud, cards):
    cards.say(1, sm=63, mem=3 << 30, power=410000)
    task = batch(cloud, "--gpus", "2", "-n", "busy", "sleep", "100")
    cloud.wait_state(task, "running")

    def seen():
        g = json.loads(cloud.out("virga", "gpu", "top", "-o", "json"))[1]
        return g["sm_percent"] == 63 and g["holders"] and g["holders"][0]["usage"] and g
    g = wait_for("the use to be seen", seen)
    assert (g["mem_used_bytes"], g["power_mw"], g["state"]) == (3 << 30, 410000, "busy")
    assert g["holders"][0]["task"] == task and g["holders"][0]["name"] == "busy"
    assert task in cloud.out("virga", "gpu", "top")
    assert cloud.task(task)["gpus"] == [0, 1]
    cloud.virga("task", "cancel", task, check=0)


def test_an_attempt_is_measured_from_its_start_to_its_end(cloud, cards):
    def bus(rx, tx):
        for index in (0, 1):
            cards.say(index, sm=80, mem=4 << 30, power=200000, rx=rx, tx=tx)
    bus(1 << 30, 5)
    gate = cloud.work / "measured"
    task = batch(cloud, "--gpus", "2", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
    cloud.wait_state(task, "running")
    sampled = wait_for("its first sample", lambda: (u := cloud.task(task)["gpu_usage"]) and u["sampled_usec"])
    bus(3 << 30, 6)
    gate.touch()
    t = cloud.wait_state(task, "succeeded")
    u = t["gpu_usage"]
    assert (u["pcie_rx_bytes"], u["pcie_tx_bytes"]) == (4 << 30, 2)
    assert t["cpu_usec"] > 0 and t["mem_peak_bytes"] > 0
    assert u["sm_mean_milli"] == 80000 and u["sm_max_percent"] == 80 and u["mem_mean_milli"] == 40000
    assert u["mem_peak_bytes"] == 8 << 30, "of both cards together"
    # Two cards of 200 W, looked at when it ended, not only by the second's tick.
    assert sampled < u["sampled_usec"] <= 2 * (t["ended_usec"] - t["started_usec"]) + 2_000_000, u
    assert abs(u["energy_mj"] - u["sampled_usec"] * 0.2) < 10 + u["sampled_usec"] / 10_000, u
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    row = wait_for("the ledger's row", lambda: db.execute(
        "SELECT gpu_milli, gpu_sm_milli, gpu_sm_max, gpu_mem_peak_bytes, gpu_mj, gpu_sampled_usec, gpu_pcie_rx_bytes, gpu_pcie_tx_bytes, "
        "cpu_usec, mem_peak_bytes FROM attempts WHERE task=?",
        (task,)).fetchone())
    assert row == (2000, 80000, 80, 8 << 30, u["energy_mj"], u["sampled_usec"], 4 << 30, 2, t["cpu_usec"], t["mem_peak_bytes"])
    shown = cloud.out("virga", "task", "get", task)
    assert "80.0 % of the time" in shown and "8 GiB" in shown and "energy" in shown and "4 GiB to the GPU" in shown


def test_a_task_without_a_gpu_is_not_measured(cloud, cards):
    task = batch(cloud, "true")
    assert cloud.wait_state(task, "succeeded")["gpu_usage"] is None


def test_counts_go_on_when_the_agent_is_killed(cloud, cards):
    cards.say(0, sm=50, power=100000)
    gate = cloud.work / "gate"
    task = batch(cloud, "--gpus", "1", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")

    def counted():
        cloud.out("virga", "gpu", "top")  # the counters are read more often while somebody looks
        return (u := cloud.task(task)["gpu_usage"]) and u["energy_mj"] or 0
    wait_for("a first count", counted)
    agent = int(read_bytes(cloud.home / "node" / "pid"))
    before = counted()
    (cloud.home / "node" / "usage" / "00000000000000ff.1").write_text("of a task that nobody knows")
    os.kill(agent, signal.SIGKILL)
    wait_for("another agent", lambda: int(read_bytes(cloud.home / "node" / "pid") or 0) not in (0, agent))
    wait_for("more to be counted", lambda: counted() > before)
    gate.touch()
    u = cloud.wait_state(task, "succeeded")["gpu_usage"]
    assert u["energy_mj"] > before and u["sm_mean_milli"] == 50000
    wait_for("what is told to be forgotten", lambda: not list((cloud.home / "node" / "usage").iterdir()))


def test_a_card_that_fails_takes_nothing_new_until_somebody_says_so(cloud, cards):
    run = cloud.popen(["vrun", "--gpus", "1", "sh", "-c", "echo here; sleep 100"])
    assert run.stdout.readline() == b"here\n"
    cards.say(0, xid=79)
    told = run.stderr.readline().decode()
    assert "GPU 0" in told and "fell off the bus (XID 79)" in told
    g = cards.state(0)
    assert (g["state"], g["reason"], g["xid"]) == ("drained", "fell off the bus (XID 79)", 79)
    assert "XID 79" in cloud.out("virga", "gpu", "health")
    assert cards.state(1)["state"] == "free"
    assert cloud.out("vrun", "--gpus", "1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == "1"
    waits = batch(cloud, "--gpus", "3", "true")
    assert "1 GPU of its pool is drained" in cloud.out("virga", "task", "why", waits)
    run.terminate()
    run.communicate()
    cards.quiet()
    assert cloud.task(waits)["state"] == "queued", "that the card answers again is not enough"
    cloud.virga("gpu", "resume", f"{g['node']}:0", check=0)
    cloud.wait_state(waits, "succeeded")


def test_other_ways_to_fail(cloud, cards):
    holder = batch(cloud, "--gpus", "3", "sleep", "100")  # who holds cards has them looked at every second
    cloud.wait_state(holder, "running")
    cards.say(0, ecc=2)
    cards.say(1, lost=1)
    for index, why in ((0, "2 memory errors"), (1, "fell off the bus")):
        wait_for("the card to be drained", lambda: cards.state(index)["state"] == "drained")
        assert why in cards.state(index)["reason"]
    assert "out of use" in (cloud.task(holder)["notice"] or ""), cloud.task(holder)
    assert cards.state(2)["state"] == "busy", "control"
    cloud.virga("task", "cancel", holder, check=0)


def test_a_programs_own_mistake_drains_nothing(cloud, cards):
    cards.say(0, xid=31)
    wait_for("it to be seen", lambda: json.loads(cloud.out("virga", "gpu", "top", "-o", "json"))[0]["xid"] == 31)
    assert cards.state(0)["state"] == "free"


def test_an_administrators_word_outlives_virgad(cloud, cards):
    node = cards.state(0)["node"]
    cloud.virga("gpu", "drain", f"{node}:0", "-r", "new cable", check=0)
    pid = int(read_bytes(cloud.home / "control" / "pid"))
    os.kill(pid, signal.SIGKILL)
    wait_for("another virgad", lambda: int(read_bytes(cloud.home / "control" / "pid") or 0) not in (0, pid))
    wait_for("the node to be back", lambda: cloud.virga("gpu", "list").returncode == 0 and cards.state(0)["state"] == "drained")
    assert cards.state(0)["reason"] == "new cable"
    cloud.virga("gpu", "resume", f"{node}:0", check=0)
    assert cards.state(0)["state"] == "free"


def test_a_gpu_that_is_not_there_is_a_sentence(cloud, cards):
    done = cloud.virga("gpu", "drain", f"{cards.state(0)['node']}:7")
    assert done.returncode == 125 and b"has no GPU 7" in done.stderr
    done = cloud.virga("gpu", "drain", "seven")
    assert done.returncode == 125 and b"NODE:INDEX" in done.stderr


def test_an_idle_task_is_warned_and_ended_and_a_busy_or_exempt_one_is_not(cloud, cards):
    exempt = batch(cloud, "-P", "exempt", "--gpus", "1", "sleep", "100")
    cloud.wait_state(exempt, "running")
    for index in range(3):
        cards.say(index, sm=5)
    busy = batch(cloud, "-P", "strict", "--gpus", "1", "sleep", "100")
    on = cloud.wait_state(busy, "running")["gpus"]
    for index in {0, 1, 2} - set(on):
        cards.say(index, sm=0)
    run = cloud.vrun("-P", "strict", "--gpus", "1", "sleep", "100")
    said = run.stderr.decode()
    assert run.returncode != 0
    assert "has not been used for" in said and "ends such tasks after 2.0 s" in said
    assert "ended because its GPU was not used" in said and "administrator" in said
    assert cloud.task(busy)["state"] == "running"
    t = cloud.task(exempt)
    assert t["state"] == "running" and t["gpu_usage"]["idle_usec"] > 1_000_000
    cloud.virga("task", "cancel", busy, exempt, check=0)


def test_an_idle_notebook_is_told_on_its_terminal_and_ended(cloud, cards):
    with Terminal(["vrun", "-P", "strict", "--gpus", "1", "python3", "-q", "-i"], cloud.env, cloud.work) as t:
        t.expect(">>> ")
        t.send("print(6 * 7)\n")
        t.expect(r"42\r?\n")
        t.expect("its GPU has not been used for .*; pool 'strict' ends such tasks after 2.0 s")
        t.expect("ended because its GPU was not used")
        assert t.wait() != 0


def test_a_watcher_that_dies_is_replaced_and_nobody_suffers(cloud, cards):
    pid = wait_for("a watcher", lambda: watcher(cloud))
    os.kill(pid, signal.SIGKILL)
    wait_for("it to be gone", lambda: status_field(pid, "State") is None)
    task = batch(cloud, "--gpus", "1", "true")
    cloud.wait_state(task, "succeeded")
    assert cards.state(0)["state"] == "free"


def test_a_driver_that_hangs_stops_neither_heartbeats_nor_tasks():
    cloud = Cloud(CONFIG)
    try:
        cloud.up("--no-agent")
        agent = cloud.popen(["virga", "agent", "--gpus", "fake:1", "--gpu-timeout", "2s", "--name", "n"])
        wait_for("the card", lambda: (g := cloud.json("gpu", "list")) and g[0]["mem_bytes"])
        Cards(cloud).say(0, hang=1)
        holder = batch(cloud, "--gpus", "1", "sleep", "100")
        g = wait_for("the driver to be given up",
                     lambda: (g := cloud.json("gpu", "list")[0])["state"] == "drained" and g)
        assert "has not answered for" in g["reason"]
        assert cloud.task(holder)["state"] == "running"
        assert cloud.json("node", "list")[0]["state"] == "ready"
        assert cloud.out("vrun", "echo", "fine") == "fine"
        cloud.virga("task", "cancel", holder, check=0)
        cloud.wait_state(holder, "cancelled")
        agent.send_signal(signal.SIGINT)
        agent.communicate(timeout=60)
    finally:
        cloud.remove()
