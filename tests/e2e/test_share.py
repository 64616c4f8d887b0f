"""Shares of a GPU over the whole cloud, on simulated cards: real tasks in real sandboxes, our library before a driver's, the real
warden below, and a driver that keeps its own count (tests/gpu). What is said of memory and time is what that driver saw."""
import json
import os
import signal
import subprocess

import pytest
from conftest import close_cloud
from simulated import FOLDER, GIB, MIB, OWN, PROGRAMS, Driver
from virga import LONG, Cloud, noted, wait_for

CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: whole
  - name: parts
    class: shared
  - name: quick
    class: shared
    gpu_turn: 500us
  - name: strict
    class: shared
    idle_end: 2s
"""
WAYS = ["linear", "pitch", "async", "pool", "vmm", "array", "mipmap", "managed", "globals", "stack", "contexts", "graph", "import"]
CAP = 4 * GIB
CONTEXT = 66 * MIB  # of the simulated libcuda, and its group of channels
RAW = PROGRAMS / "sim-raw"
OUT_OF_MEMORY, UNKNOWN = 2, 999


@pytest.fixture(scope="module")
def world():
    cloud = Cloud(CONFIG)
    driver = Driver(cloud)
    try:
        cloud.up("--gpus", "fake:2")
        wait_for("the cards", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 * GIB] * 2)
    except BaseException:
        cloud.remove()
        driver.close()
        raise
    yield cloud, driver
    alive = driver.process.poll() is None
    driver.close()
    close_cloud(cloud)
    assert alive, "the driver ended: it was asked what it does not know"


@pytest.fixture
def cloud(world):
    return world[0]


@pytest.fixture
def driver(world):
    """With nothing left of earlier tests, by its own word."""
    wait_for("the card to be free again", lambda: world[1].stat()["clients"] == [])
    world[1].ask("peak")
    return world[1]


@pytest.fixture
def one_card(cloud):
    """All shares on card 0."""
    node = cloud.json("gpu", "list")[1]["node"]
    cloud.virga("gpu", "drain", f"{node}:1", check=0)
    yield
    cloud.virga("gpu", "resume", f"{node}:1", check=0)


def share(gpus="0.3", mem="4G", name=None, pool="parts"):
    return ["vrun", "-P", pool, "--gpus", gpus, "--gpu-mem", mem, *(["-n", name] if name else [])]


def with_library(*argv, folder=FOLDER):
    return ["env", f"LD_LIBRARY_PATH={folder}", *map(str, argv)]


def lines(done):
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def run(cloud, *argv):
    return lines(cloud.run([*map(str, argv)]))[0]


class Holder:
    """A program that has a context and some memory, for as long as it is wanted."""

    def __init__(self, cloud, name, gpus, mem="4G", mib=64, pool="parts"):
        self.cloud, self.name = cloud, name
        self.run = cloud.popen([*share(gpus, mem, name, pool), *with_library(PROGRAMS / "sim-hold", "hold", mib, name)],
                               stdin=subprocess.PIPE)
        assert self.run.stdout.readline() == b'{"held_mib": %d}\n' % mib, self.run.communicate(timeout=30)

    @property
    def task(self):
        return wait_for(f"{self.name} to be known to run", lambda: next(
            (t["id"] for t in self.cloud.json("task", "list") if t["name"] == self.name and t["state"] == "running"), None))

    def end(self):
        self.run.stdin.close()
        self.run.stdin = None
        self.run.communicate(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


# ------------------------------------------------------------------ memory


def test_a_whole_card_has_no_cap(cloud, driver):
    """The control: the same ways, the same programs, and nobody in between."""
    tries = lines(cloud.vrun("-P", "whole", "--gpus", "1", *with_library(PROGRAMS / "gpu-paths", "5120", *WAYS, folder=OWN)))
    assert [t["way"] for t in tries] == WAYS
    for t in tries:
        assert t["error"] == 0 and t["card_mib"] >= 5120, t
    seen = driver.stat()
    assert seen["most"] > 5 * GIB and seen["in_stead"] == 0 and seen["direct"] > 0


def test_what_a_share_holds_is_shown(cloud, driver, one_card):
    with Holder(cloud, "shown", "0.3", mem="1G", mib=64) as held:
        use = driver.stat()["used"]
        assert use >= 64 << 20
        wait_for("its memory to be told, as the driver counts",
                 lambda: (cloud.task(held.task)["gpu_usage"] or {}).get("share_used_bytes") == use)
        task = held.task
        assert "130 MiB of 1 GiB, at most 130 MiB\n" in cloud.out("virga", "task", "get", task)
    usage = wait_for("its end", lambda: cloud.task(task)["state"] == "succeeded" and cloud.task(task)["gpu_usage"])
    assert usage["mem_peak_bytes"] == use, "the most is kept"


def test_every_way_to_memory_ends_at_the_share(cloud, driver):
    for t in lines(cloud.run([*share(), *with_library(PROGRAMS / "gpu-paths", "12288", *WAYS)])):
        if t["way"] == "import":
            assert t["error"] and t["steps"] == 0, t  # nothing of another process's is taken at all
        else:
            assert t["error"] == OUT_OF_MEMORY, t
    seen = driver.stat()
    assert seen["most"] <= CAP and seen["most"] >= CAP - 256 * MIB, "to the brim, and no byte beyond it"
    assert seen["direct"] == 0 and seen["in_stead"] > 100, "every call about memory came by the warden"


@pytest.mark.parametrize("ways", [["linear"] * 8, ["linear", "vmm", "managed", "contexts", "pool", "graph", "array", "stack"]])
def test_eight_that_race_share_one_cap(cloud, driver, ways):
    racing = " & ".join(f"{PROGRAMS}/gpu-paths 12288 {way}" for way in ways)
    tries = lines(cloud.run([*share(), *with_library("sh", "-c", f"{racing} & wait")]))
    assert len(tries) == 8 and all(t["error"] == OUT_OF_MEMORY for t in tries), tries
    seen = driver.stat()
    assert CAP - 256 * MIB <= seen["most"] <= CAP and seen["direct"] == 0
    wait_for("the card to be free", lambda: driver.stat()["used"] == 0)


def test_two_shares_of_a_card_have_each_their_own(cloud, driver, one_card):
    with Holder(cloud, "first", "0.3", mib=3900):
        got = run(cloud, *share("0.3", "6G"), RAW, "fill", 12288)
        assert (got["got_mib"], got["status"]) == (6144, 0x51)
        assert driver.stat()["cards"][0]["peak"] == 6 * GIB + 3900 * MIB + CONTEXT


def test_who_goes_around_the_library_gains_nothing(cloud, driver):
    around = [[RAW, "fill", 12288],  # linked statically, with calls of its own
              ["env", "-i", RAW, "fill", 12288],
              ["sh", "-c", f"unset LD_LIBRARY_PATH LD_PRELOAD; exec {RAW} fill 12288"]]
    for argv in around:
        got = run(cloud, *share(), *argv)
        assert (got["got_mib"], got["status"]) == (4096, 0x51), argv
    # The driver's own library, where it is or brought along: its words for it differ, its limit does not.
    for folder in ("/run/virga/vgpu/real", OWN):
        for t in lines(cloud.run([*share(), *with_library(PROGRAMS / "gpu-paths", "12288", *WAYS, folder=folder)])):
            assert t["error"] == (UNKNOWN if t["way"] in ("managed", "import") else OUT_OF_MEMORY), t
    seen = driver.stat()
    assert seen["most"] <= CAP and seen["direct"] == 0


def test_the_driver_may_refuse_as_well_and_nothing_is_lost(cloud, driver):
    driver.ask("fail", 2)  # it tries again with less
    failed = run(cloud, *share(), RAW, "fill", 64)
    assert (failed["got_mib"], failed["status"]) == (2, 0x51), "its group of channels alone"
    assert run(cloud, *share(), RAW, "fill", 12288)["got_mib"] == 4096
    script = f"for i in 1 2 3; do {RAW} fill 12288; done"
    assert [t["got_mib"] for t in lines(cloud.run([*share(), "sh", "-c", script]))] == [4096] * 3, "freed with its process"


def test_a_card_that_is_lost_is_an_error_and_no_more(cloud, driver):
    driver.ask("lose", 0, 1)
    driver.ask("lose", 1, 1)
    try:
        assert run(cloud, *share(), RAW, "fill", 64)["status"] == 0x0f
    finally:
        driver.ask("lose", 0, 0)
        driver.ask("lose", 1, 0)
    assert run(cloud, *share(), RAW, "fill", 64)["got_mib"] == 64


def test_a_driver_that_hangs_holds_up_its_callers_alone(cloud, driver):
    filler = cloud.popen([*share(), "sh", "-c", f"echo on; read go; exec {RAW} fill 12288"], stdin=subprocess.PIPE)
    assert filler.stdout.readline() == b"on\n"
    driver.process.send_signal(signal.SIGSTOP)
    try:
        filler.stdin.write(b"go\n")
        filler.stdin.flush()
        assert cloud.out("vrun", "-P", "whole", "echo", "fine") == "fine"
        assert cloud.json("node", "list")[0]["state"] == "ready"
        assert filler.poll() is None
    finally:
        driver.process.send_signal(signal.SIGCONT)
    assert json.loads(filler.stdout.readline())["got_mib"] == 4096
    filler.communicate(timeout=60)


def test_the_books_are_exact_after_kill_9(cloud, driver):
    rounds = 500 if LONG else 50
    script = f"""
    mkfifo /tmp/said
    i=0
    while [ $i -lt {rounds} ]; do
        {RAW} hold 1000 a > /tmp/said < /dev/zero & a=$!
        read said < /tmp/said
        case $said in *'"got_mib": 1000'*) ;; *) echo "{{\\"round\\": $i, \\"said\\": $said}}"; exit 0 ;; esac
        kill -9 $a
        wait $a 2> /dev/null
        i=$((i + 1))
    done
    exec {RAW} fill 12288
    """
    got = run(cloud, *share(), "sh", "-c", script)
    assert got.get("got_mib") == 4096, got
    seen = driver.stat()
    assert seen["most"] <= CAP and seen["direct"] == 0
    wait_for("everything to be given back", lambda: driver.stat()["used"] == 0)


@pytest.mark.parametrize("seed", range(1, 41 if LONG else 3))
def test_both_counts_agree_in_a_storm(cloud, driver, seed):
    """Random requests and frees by every way: what the warden counts, as the library shows it, is what the driver counts."""
    with cloud.popen([*share(), *with_library(PROGRAMS / "sim-storm", seed, 1500)], stdin=subprocess.PIPE) as storm:
        full = json.loads(storm.stdout.readline())
        assert full["held"] and full["refused"], full
        seen = driver.stat()
        assert seen["most"] <= CAP and seen["direct"] == 0
        assert CAP >= full["used"] >= seen["used"] + seen["managed"], "managed memory is given back a little later"
        storm.stdin.write(b"x")
        storm.stdin.flush()
        assert json.loads(storm.stdout.readline())["held"] == 0
        seen = driver.stat()
        assert (seen["used"], seen["managed"]) == (CONTEXT, 0)


def test_eight_storms_and_kill_9(cloud, driver):
    script = f"""
    i=0
    while [ $i -lt {20 if LONG else 3} ]; do
        storms=
        for seed in 1 2 3 4 5 6 7 8; do
            {PROGRAMS}/sim-storm $i$seed 100000 < /dev/zero > /dev/null & storms="$storms $!"
        done
        sleep 0.1
        kill -9 $storms 2> /dev/null
        wait 2> /dev/null
        i=$((i + 1))
    done
    exec {RAW} fill 12288
    """
    assert run(cloud, *share(), *with_library("sh", "-c", script))["got_mib"] == 4096
    seen = driver.stat()
    assert seen["most"] <= CAP and seen["direct"] == 0


def test_a_task_that_is_killed_leaves_nothing_on_the_card(cloud, driver):
    for _ in range(20 if LONG else 3):
        held = Holder(cloud, "doomed", "0.3", mib=2048)
        assert driver.stat()["used"] == 2048 * MIB + CONTEXT
        cloud.virga("task", "signal", held.task, "KILL", check=0)
        held.run.communicate(timeout=60)
        wait_for("the memory to be free", lambda: driver.stat()["clients"] == [])


def test_memory_that_did_not_come_by_the_warden_is_found(cloud, driver, one_card):
    """The driver's own count by process is compared with the warden's: as if a call had been made behind its back."""
    script = cloud.home / "node" / "fake-gpus" / "0"
    with Holder(cloud, "honest", "0.3", mib=1024):
        sly = Holder(cloud, "sly", "0.3", mib=1024)
        more = {"honest": 0, "sly": GIB}
        script.write_text("".join(f"proc {c['pid']} 10 {c['bytes'] + more[c['who'].split()[-1]]}\n"
                                  for c in driver.stat()["clients"] if c["bytes"]))
        assert sly.run.wait(timeout=60) == 137
        assert b"2.1 GiB of the GPU, by the driver's count" in sly.run.communicate()[1]
        script.unlink()
        wait_for("the honest one to be left alone",
                 lambda: [c["who"].split()[-1] for c in driver.stat()["clients"] if c["bytes"]] == ["honest"])


# ------------------------------------------------------------------ changed under way


def test_a_weight_is_changed_under_running_tasks(cloud, driver, one_card):
    with Holder(cloud, "left", "0.3") as left, Holder(cloud, "right", "0.3") as right:
        def are(a, b):
            return lambda: abs(driver.shares(0, ["left", "right"])["left"] - 100 * a / (a + b)) < 1
        wait_for("halves", are(1, 1))
        cloud.virga("task", "share", left.task, "--gpus", "0.7", check=0)
        wait_for("the new weights", are(7, 3))
        done = cloud.virga("task", "share", right.task, "--gpus", "0.9")
        assert done.returncode != 0 and are(7, 3)(), "what the card has not cannot be given"
        cloud.virga("task", "share", left.task, "--gpus", "0.1", check=0)
        cloud.virga("task", "share", right.task, "--gpus", "0.9", check=0)
        wait_for("the newest", are(1, 9))


def test_memory_is_changed_under_a_running_task(cloud, driver, one_card):
    script = f"while read mib; do {RAW} fill $mib; {PROGRAMS}/sim-hold info; done"
    run = cloud.popen([*share(name="grows"), *with_library("sh", "-c", script)], stdin=subprocess.PIPE)

    def has():
        run.stdin.write(b"12288\n")
        run.stdin.flush()
        return json.loads(run.stdout.readline())["got_mib"], json.loads(run.stdout.readline())["total"]
    assert has() == (4096, 4 * GIB)
    task = next(t["id"] for t in cloud.json("task", "list") if t["name"] == "grows")
    cloud.virga("task", "share", task, "--gpu-mem", "6G", check=0)
    assert len(noted(cloud, task + ": share")) == 1
    wait_for("its new share", lambda: has() == (6144, 6 * GIB))
    cloud.virga("task", "share", task, "--gpu-mem", "1G", check=0)
    wait_for("a smaller one", lambda: has() == (1024, GIB))
    run.communicate(timeout=60)


def test_memory_that_is_given_up_is_others_without_what_is_in_use(cloud, driver, one_card):
    def batch(mem):
        return cloud.out("vbatch", "-q", "-P", "parts", "--gpus", "0.3", "--gpu-mem", mem, "sleep", "100")
    with Holder(cloud, "keeps", "0.3", mem="60G", mib=20480) as keeps:
        wait_for("its use to be told",
                 lambda: ((cloud.task(keeps.task)["gpu_usage"] or {}).get("share_used_bytes") or 0) >= 20480 * MIB)
        cloud.virga("task", "share", keeps.task, "--gpu-mem", "10G", check=0)
        fits = batch("55G")
        cloud.wait_state(fits, "running")
        cloud.virga("task", "cancel", fits, "--grace", "0", check=0)
        cloud.wait_state(fits, "cancelled")
        much = batch("65G")
        assert cloud.task(much)["state"] == "queued", "20 GiB are in use, whatever the limit says"
        assert "it needs 0.3 of a GPU with 65 GiB and a card with that much free has at most 59.9 GiB left" in cloud.out(
            "virga", "task", "why", much)
    cloud.wait_state(much, "running")
    cloud.virga("task", "cancel", much, "--grace", "0", check=0)


# ------------------------------------------------------------------ what a program sees


def test_a_program_is_told_its_share(cloud, driver, one_card):
    with Holder(cloud, "neighbour", "0.5", mem="8G", mib=2048):
        told = run(cloud, *share(), *with_library(PROGRAMS / "sim-hold", "info"))
    assert told == {"count": 1, "nvml_count": 1, "total": CAP, "device": CAP, "nvml_total": CAP, "free": CAP - CONTEXT,
                    "nvml_free": CAP - CONTEXT, "nvml_used": CONTEXT}
    whole = run(cloud, "vrun", "-P", "whole", "--gpus", "1", *with_library(PROGRAMS / "sim-hold", "info", folder=OWN))
    assert (whole["total"], whole["nvml_total"]) == (80 * GIB, 80 * GIB), "control"


def test_the_library_by_any_name_is_ours(cloud, driver):
    for name in ("libcuda.so.1", f"{FOLDER}/libcuda.so.1"):
        assert run(cloud, *share(), *with_library(PROGRAMS / "sim-hold", "load", name))["has_future"] is False, name
    real = run(cloud, *share(), PROGRAMS / "sim-hold", "load", "/run/virga/vgpu/real/libcuda.so.1")
    assert real["has_future"] is True, "control: the driver's own has a name that no table of ours has"


@pytest.mark.parametrize("missing, libraries", [("libcuda", []), ("libnvidia-ml", ["libcuda.so.1"])])
def test_without_the_drivers_files_there_is_no_share(missing, libraries):
    cloud = Cloud(CONFIG)
    driver = Driver(cloud, libraries=libraries)
    try:
        cloud.up("--gpus", "fake:1")
        wait_for("the card", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 * GIB])
        done = cloud.run([*share(), "true"])
        assert done.returncode == 125 and f"this node has no {missing} of its driver".encode() in done.stderr, done
        cloud.vrun("-P", "whole", "--gpus", "1", "true", check=0)
        assert driver.stat()["in_stead"] == 0
    finally:
        close_cloud(cloud)
        driver.close()


# ------------------------------------------------------------------ fences


def test_a_share_reaches_neither_another_card_nor_another_task(cloud, driver, one_card):
    got = run(cloud, *share(), RAW, "card", 1)
    assert got["opened"] == 1 and got["status"] != 0, got
    assert run(cloud, *share(), RAW, "card", 0)["status"] == 0, "control"
    assert cloud.out(*share(), "sh", "-c", "ls /dev | grep nvidia | sort | tr '\\n' ' '").split() == [
        "nvidia-uvm", "nvidia0", "nvidiactl"]
    victim = cloud.popen([*share(), str(RAW), "hold", "64"], stdin=subprocess.PIPE)
    has = json.loads(victim.stdout.readline())
    stolen = run(cloud, *share(), RAW, "steal", has["client"], has["object"])
    assert stolen["status"] < 0, stolen
    victim.communicate(timeout=60)


def test_a_device_that_is_not_there_is_no_start(cloud, driver, one_card):
    (driver.folder / "nvidia0").rename(driver.folder / "away")
    try:
        done = cloud.run([*share(), "true"])
        assert done.returncode == 125 and b"cannot find device" in done.stderr, done.stderr
    finally:
        (driver.folder / "away").rename(driver.folder / "nvidia0")
    cloud.run([*share(), "true"], check=0)


def test_a_task_cannot_set_its_own_slice(cloud, driver):
    got = run(cloud, *share(), RAW, "slice", 90000)
    assert got["slice_usec"] not in (0, 90000), "it is told that it did, as libcuda wants it, and did not"
    for command in ("0xa06c0107", "0xa06c0110", "0xa06c0202"):
        assert run(cloud, *share(), RAW, "control", command)["status"] == 0x56, command


def test_whole_cards_have_the_slices_that_they_set(cloud, driver):
    assert run(cloud, "vrun", "-P", "whole", "--gpus", "1", RAW, "slice", 90000)["slice_usec"] == 90000, "control"


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("weights", [(30, 70), (10, 90), (10, 20, 30)])
def test_time_is_divided_by_weight(cloud, driver, one_card, weights):
    names = [f"w{w}of{len(weights)}" for w in weights]
    want = {name: 100 * w / sum(weights) for name, w in zip(names, weights)}
    holders = [Holder(cloud, name, f"{w / 100:g}") for name, w in zip(names, weights)]
    wait_for("the slices", lambda: all(abs(got - want[n]) < 1 for n, got in driver.shares(0, names).items()))
    assert driver.shares(0, names[:1]) == {names[0]: 100}, "who is alone has it all"
    holders.pop().end()
    rest = {n: 100 * w / sum(weights[:-1]) for n, w in zip(names[:-1], weights)}
    wait_for("the others' slices", lambda: all(abs(got - rest[n]) < 1 for n, got in driver.shares(0, list(rest)).items()))
    for h in holders:
        h.end()


def test_a_slice_that_somebody_else_changed_is_taken_back(cloud, driver, one_card):
    with Holder(cloud, "fair", "0.5"), Holder(cloud, "greedy", "0.5"):
        def even():
            return all(abs(v - 50) < 1 for v in driver.shares(0, ["fair", "greedy"]).values())
        wait_for("the slices", even)
        assert driver.ask("slice", "greedy", 900000) == {"set": 1}
        assert driver.shares(0, ["fair", "greedy"])["greedy"] > 90, "control"
        wait_for("it to be taken back", even)


def test_no_turn_is_longer_than_a_quick_pool_allows(cloud, driver, one_card):
    with Holder(cloud, "hog", "0.8"):
        wait_for("its slice", lambda: driver.stat()["groups"][0]["slice_usec"] > 500)
        with Holder(cloud, "soon", "0.2", pool="quick"):
            wait_for("short turns in the same proportion", lambda: {g["who"].split()[-1]: g["slice_usec"]
                     for g in driver.stat()["groups"]} == {"hog": 500, "soon": 125})
        wait_for("long ones again", lambda: driver.stat()["groups"][0]["slice_usec"] > 500)


def test_an_agent_that_is_killed_leaves_shares_as_they_are(cloud, driver, one_card):
    script = f"read go; exec {RAW} fill 12288"
    filler = cloud.popen([*share("0.2"), "sh", "-c", script], stdin=subprocess.PIPE)
    with Holder(cloud, "a20", "0.2"), Holder(cloud, "b60", "0.6"):
        def by_weight():
            return abs(driver.shares(0, ["a20", "b60"])["b60"] - 75) < 1
        wait_for("the slices", by_weight)
        before = cloud.pid("agent")
        os.kill(before, signal.SIGKILL)
        wait_for("another agent", lambda: cloud.pid("agent") not in (None, before))
        assert driver.ask("slice", "a20", 60000) == {"set": 1}
        wait_for("its warden to be there still", by_weight)
        filler.stdin.write(b"go\n")
        filler.stdin.flush()
        assert json.loads(filler.stdout.readline())["got_mib"] == 4096
        filler.communicate(timeout=60)
        wait_for("the new agent to know them", lambda: {g["who"].split()[-1]: g["slice_usec"] for g in driver.stat()["groups"]}
                 == {"a20": 3000, "b60": 9000})
    with Holder(cloud, "a20", "0.2"), Holder(cloud, "c10", "0.1"):
        wait_for("it to divide", lambda: abs(driver.shares(0, ["a20", "c10"])["c10"] - 100 / 3) < 1)


# ------------------------------------------------------------------ health


def test_an_idle_share_is_ended_beside_a_busy_one(cloud, driver, one_card):
    """By what each one's processes do, not by what the card does."""
    script = cloud.home / "node" / "fake-gpus" / "0"
    script.write_text("sm 60\n")
    with Holder(cloud, "busy", "0.3", pool="strict"):
        idle = Holder(cloud, "idle", "0.3", pool="strict")
        use = {"busy": 60, "idle": 0}
        script.write_text("sm 60\n" + "".join(f"proc {c['pid']} {use[c['who'].split()[-1]]} {c['bytes']}\n"
                                              for c in driver.stat()["clients"] if c["bytes"]))
        assert idle.run.wait(timeout=60) != 0
        assert b"ended because its GPU was not used" in idle.run.communicate()[1]
        wait_for("the busy one to be left alone",
                 lambda: [c["who"].split()[-1] for c in driver.stat()["clients"] if c["bytes"]] == ["busy"])
    script.unlink()


def test_who_has_a_share_of_a_card_that_fails_is_told(cloud, driver, one_card):
    held = Holder(cloud, "told", "0.3")
    script = cloud.home / "node" / "fake-gpus" / "0"
    script.write_text("xid 79\n")
    assert "fell off the bus (XID 79)" in held.run.stderr.readline().decode()
    node = cloud.json("gpu", "list")[0]["node"]
    waits = cloud.out("vbatch", "-P", "parts", "--gpus", "0.3", "--gpu-mem", "4G", "true")
    assert "drained" in cloud.out("virga", "task", "why", waits)
    held.end()
    script.unlink()
    cloud.virga("gpu", "resume", f"{node}:0", check=0)
    cloud.wait_state(waits, "succeeded")
