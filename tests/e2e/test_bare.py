"""Pools of class bare-metal: a task gets a whole node and everything it has, and the node is wiped and says so before it
takes anything else. On simulated cards; what is private to a task by its namespaces is real."""
import os
import shutil
import signal
import sqlite3

import pytest
from hosts import FAR_CONFIG, FarNode, far_world
from virga import BIN, Cloud, descendants_of, pids, read_bytes, status_field, wait_for

CONFIG = """
lease: 20s
heartbeat: 300ms
pools:
  - name: default
  - name: metal
    class: bare-metal
    price: {gpu_hour: 3600}
"""
MARK = "virga-test-bare-left-behind"
LEAVE = f"""
echo secret > /tmp/{MARK}; echo secret > /dev/shm/{MARK}; echo secret > /var/tmp/{MARK}; echo secret > /etc/{MARK}
ipcmk -M 4096 > /dev/null
setsid sleep 4321 > /dev/null 2>&1 < /dev/null &
(setsid sleep 4322 > /dev/null 2>&1 < /dev/null &)
"""


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:2")
    yield cloud
    assert cloud.down().returncode == 0
    assert not cloud.leftovers()
    cloud.remove()


@pytest.fixture
def cards(cloud):
    folder = cloud.home / "node" / "fake-gpus"
    folder.mkdir(exist_ok=True)
    yield folder
    for f in folder.glob("[0-9].*"):
        f.unlink()
    wait_for("the node to be fit", lambda: node(cloud)["state"] == "ready")


def node(cloud):
    return cloud.json("node", "list")[0]


def bare(cloud, *argv):
    """A task in the background, by its id."""
    return cloud.out("vbatch", "--pool", "metal", *argv)


def ended(cloud, task):
    return cloud.wait_state(task, "succeeded", "failed")


def running(text):
    return [p for p in pids() if text.encode() in read_bytes(f"/proc/{p}/cmdline")]


def running_below(pid, text):
    return set(running(text)) & set(descendants_of(pid))


def wipers(cloud):
    return [p for p in running("node-wipe") if str(cloud.home).encode() in read_bytes(f"/proc/{p}/cmdline")]


def test_it_has_all_that_the_node_has_whatever_it_asked_for(cloud, cards):
    t = ended(cloud, bare(cloud, "--cpus", "1", "--", "sh", "-c", "ls -d /dev/* ; echo net $(readlink /proc/self/ns/net); "
                                                                  "echo cards $CUDA_VISIBLE_DEVICES"))
    out = cloud.out("virga", "task", "logs", t["id"])
    whole = node(cloud)["total"]
    assert t["status"] == 0, out
    assert t["want"]["gpus"] == 2 and t["want"]["mem_bytes"] == whole["mem_bytes"]
    assert t["want"]["cpu_milli"] == whole["cpu_milli"]
    assert f"net {os.readlink('/proc/self/ns/net')}" in out, "not the node's network"
    assert set(f"/dev/{n}" for n in os.listdir("/dev")) <= set(out.splitlines()), "not the node's devices"
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    row = wait_for("the ledger", lambda: db.execute("SELECT gpu_milli,cpu_milli,wiped FROM attempts WHERE task=?",
                                                    (t["id"],)).fetchone())
    assert row[:2] == (2000, whole["cpu_milli"])
    assert "GPU 1: simulated" in row[2]


def test_the_node_is_its_own_alone(cloud, cards):
    first = bare(cloud, "sleep", "1000")
    cloud.wait_state(first, "running")
    other, second = cloud.out("vbatch", "echo", "small"), bare(cloud, "echo", "second")
    why = cloud.json("task", "why", second)
    assert "whole node" in why["text"], why
    assert cloud.task(other)["state"] == "queued" and cloud.task(second)["state"] == "queued"
    cloud.virga("task", "cancel", first, check=0)
    assert ended(cloud, other)["status"] == 0
    assert ended(cloud, second)["status"] == 0


def test_what_it_left_is_gone_and_said(cloud, cards):
    t = ended(cloud, bare(cloud, "sh", "-c", LEAVE + "sleep 0.2"))
    assert t["status"] == 0
    told = "\n".join(t["wiped"])
    assert "processes: 2 left behind, killed" in told, told
    assert "1 System V" in told, told
    assert "GPU 0: simulated" in told and "GPU 1: simulated" in told, told
    assert not running("sleep\0004321") and not running("sleep\0004322")
    assert not os.path.exists(f"/tmp/{MARK}") and not os.path.exists(f"/dev/shm/{MARK}")
    shown = cloud.out("virga", "task", "get", t["id"])
    assert "wiped" in shown and "2 left behind" in shown
    find = f"ls /tmp/{MARK} /dev/shm/{MARK} /var/tmp/{MARK} /etc/{MARK} 2>/dev/null; ipcs -m | grep -c 4096; ps ax | grep -c '[s]leep 432'"
    after = ended(cloud, bare(cloud, "sh", "-c", find))
    assert cloud.out("virga", "task", "logs", after["id"]).split() == ["0", "0"]


def test_settings_of_cards_are_put_back(cloud, cards):
    (cards / "1.set").write_text("compute 0\npower 300000\n")
    task = bare(cloud, "sleep", "1000")
    cloud.wait_state(task, "running")
    (cards / "1.set").write_text("compute 3\npower 300000\n")
    cloud.virga("task", "cancel", task, check=0)
    t = cloud.wait_state(task, "cancelled")
    told = wait_for("the wipe", lambda: cloud.task(task)["wiped"])
    assert "GPU 1: compute mode put back from 3 to 0" in told, (t, told)
    assert "compute 0" in (cards / "1.set").read_text()


def test_a_wipe_that_fails_keeps_the_node_out_until_one_succeeds(cloud, cards):
    (cards / "0.clear").write_text("fail\n")
    t = ended(cloud, bare(cloud, "true"))
    assert any(line.startswith("not done: GPU 0") for line in t["wiped"]), t["wiped"]
    n = wait_for("the node to be unfit", lambda: (n := node(cloud))["state"] == "unfit" and n)
    assert "GPU 0" in n["unfit"] and t["id"] in n["unfit"]
    assert "unfit: not wiped" in cloud.out("virga", "node", "list")
    small = cloud.out("vbatch", "echo", "small")
    os.kill(cloud.pid("agent"), signal.SIGKILL)  # the next one knows what is due
    wait_for("another agent", lambda: wipers(cloud) or node(cloud)["state"] == "unfit")
    assert cloud.task(small)["state"] == "queued"
    (cards / "0.clear").unlink()
    assert (e := ended(cloud, small))["status"] == 0, e
    assert node(cloud)["state"] == "ready"


def test_an_agent_that_is_killed_in_the_middle_of_a_wipe(cloud, cards):
    (cards / "0.clear").write_text("slow 60000\n")
    task = bare(cloud, "sh", "-c", LEAVE + "sleep 0.2; exit 3")
    wait_for("the wipe", lambda: any(b"after" in read_bytes(f"/proc/{p}/cmdline") for p in wipers(cloud)))
    small = cloud.out("vbatch", "echo", "small")
    assert cloud.task(task)["state"] == "running", "its end is told when the node is wiped"
    agent, old = cloud.pid("agent"), wipers(cloud)
    os.kill(agent, signal.SIGKILL)
    wait_for("another wipe", lambda: set(wipers(cloud)) - set(old))
    assert cloud.task(small)["state"] == "queued"
    (cards / "0.clear").unlink()  # for the next one
    for pid in wipers(cloud):  # a wipe that did not come to its end is tried again
        os.kill(pid, signal.SIGKILL)
    t = ended(cloud, task)
    assert t["status"] == 3
    assert "processes: 2 left behind, killed" in t["wiped"], t["wiped"]
    assert "not done: the wipe: it did not come to its end" in t["wiped"], t["wiped"]
    assert (e := ended(cloud, small))["status"] == 0, e


def test_what_was_wiped_outlives_virgad_and_is_audited(cloud, cards):
    t = ended(cloud, bare(cloud, "true"))
    os.kill(cloud.pid("virgad"), signal.SIGKILL)
    again = wait_for("virgad", lambda: cloud.virga("task", "get", t["id"], "-o", "json").returncode == 0 and cloud.task(t["id"]))
    assert again["wiped"] == t["wiped"] and t["wiped"]
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    assert db.execute("SELECT count(*) FROM audit WHERE what LIKE ?", (f"task {t['id']}%processes%",)).fetchone()[0] == 1


def test_it_is_alone_also_after_virgad_was_killed(cloud, cards):
    task = bare(cloud, "--cpus", "1", "sleep", "1000")
    cloud.wait_state(task, "running")
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("virgad", lambda: cloud.pid("virgad") != old and cloud.virga("status").returncode == 0)
    small = cloud.out("vbatch", "echo", "small")
    wait_for("the node's report", lambda: node(cloud)["tasks"] == 1)
    assert cloud.task(small)["state"] == "queued"
    assert node(cloud)["used"]["gpus"] == 2 and cloud.task(task)["want"]["gpus"] == 2
    cloud.virga("task", "cancel", task, check=0)
    assert (e := ended(cloud, small))["status"] == 0, e
    assert cloud.task(task)["wiped"]


def test_a_keeper_that_is_killed_leaves_nothing_either(cloud, cards):
    task = bare(cloud, "sh", "-c", LEAVE + "sleep 1000")
    cloud.wait_state(task, "running")
    wait_for("its processes", lambda: running("sleep\0004322"))
    keeper = next(p for p in pids() if status_field(p, "Name") == "virga-keeper" and running_below(p, "sleep\0004321"))
    os.kill(keeper, signal.SIGKILL)
    wait_for("the next attempt", lambda: cloud.task(task)["attempt"] == 2 and cloud.task(task)["state"] == "running")
    wait_for("only its own processes", lambda: len(running("sleep\0004322")) == 1)
    cloud.virga("task", "cancel", task, check=0)
    cloud.wait_state(task, "cancelled")
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    rows = wait_for("the ledger", lambda: (r := db.execute("SELECT how,wiped FROM attempts WHERE task=? ORDER BY attempt",
                                                           (task,)).fetchall()) and len(r) == 2 and r)
    assert rows[0][0] == "lost" and all("GPU 0" in wiped for _how, wiped in rows), rows


def wipe(cloud, *words, **env):
    """The program itself, against libraries that have one simulated card of NVIDIA's."""
    libs = BIN.parent / "tests" / "unit" / "gpu" / "libwipe-libs.so"
    done = cloud.virga("node-wipe", *words, "--nvidia", libs, libs, env={**cloud.env, **env})
    return done.returncode, done.stdout.decode().splitlines()


def test_real_cards_are_cleared_and_what_cannot_be_is_marked(cloud, tmp_path):
    state = tmp_path / "bare"
    assert wipe(cloud, "before", state, "00000000000000aa", "1") == (0, ["done"])
    rc, lines = wipe(cloud, "after", state, WIPE_COMPUTE="3")
    assert rc == 0 and lines[0] == "GPU 0: compute mode put back from 3 to 0"
    assert lines[1] == "GPU 0 GPU-of-a-test: 4.8 GiB of 4.9 GiB of memory overwritten with zeros" and lines[-1] == "done"
    rc, lines = wipe(cloud, "after", state, WIPE_COMPUTE="1", WIPE_SET="4", WIPE_HELD_MIB="3000")
    assert rc == 1 and lines[0] == "!GPU 0: its compute mode is 1, was 0 before, and cannot be put back"
    assert lines[1].startswith("!GPU 0: only 1.9 GiB of 4.9 GiB")
    rc, lines = wipe(cloud, "before", state, "00000000000000aa", "1", WIPE_INIT="999")
    assert rc == 1 and "CUDA error 999" in lines[0] and lines[0].startswith("!")


def test_a_cloud_that_goes_down_wipes_first(cards):
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:1")
    task = bare(cloud, "sh", "-c", LEAVE + "sleep 1000")
    cloud.wait_state(task, "running")
    wait_for("its processes", lambda: running("sleep\0004322"))
    assert (cloud.home / "node" / "bare").exists()
    assert cloud.down().returncode == 0
    assert not cloud.leftovers() and not running("sleep\0004322")
    cloud.up("--gpus", "fake:1")
    wait_for("the node to be wiped", lambda: not (cloud.home / "node" / "bare").exists() and node(cloud)["state"] == "ready")
    assert cloud.vrun("true").returncode == 0
    assert cloud.down().returncode == 0
    cloud.remove()


class NodeWithCards(FarNode):
    shared = ["--gpus", "fake:2"]


@pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter") or not os.path.exists("/dev/fuse"),
                    reason="ip, nsenter (tools/bootstrap test) and FUSE are needed")
def test_with_the_files_of_another_machine():
    network = far_world(config=FAR_CONFIG + "pools: [{name: default}, {name: metal, class: bare-metal}]\n", kind=NodeWithCards)
    try:
        (network.laptop.work / "mine").write_text("of the laptop\n")
        done = network.laptop.vrun("-P", "metal", "sh", "-c", f"cat mine; cp mine back; {LEAVE} ls -d /dev/fuse; sleep 0.2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(b"of the laptop\n/dev/fuse"), done.stdout
        assert (network.laptop.work / "back").read_text() == "of the laptop\n"
        t = wait_for("its end", lambda: (t := network.laptop.json("task", "list", "-a")[0])["state"] in ("succeeded", "failed") and t)
        assert "processes: 2 left behind, killed" in network.laptop.task(t["id"])["wiped"]
        assert network.laptop.vrun("-P", "metal", "test", "!", "-e", f"/tmp/{MARK}").returncode == 0
    finally:
        network.control.virga("down")
        network.close()


@pytest.mark.parametrize("argv,words", [
    (["--session", "s"], b"a session needs another pool"),
    (["--max-cost", "5"], b"limit the task by --time"),
    (["--pool", "metal,default"], b"name pools of one"),
    (["--gpus", "0.5"], b"whole GPUs only"),
    (["--gpus", "3"], b"no node of pool 'metal' has 3 GPUs"),
])
def test_what_it_does_not_offer_is_said(cloud, argv, words):
    done = cloud.vrun("--pool", "metal", *argv, "true")
    assert done.returncode != 0 and words in done.stderr, done.stderr
