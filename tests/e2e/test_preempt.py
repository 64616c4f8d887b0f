"""Preemption: who must give way gets its signal and its time, is queued again, and ends with the right output."""
import re
import signal

from virga import wait_for

CONFIG = """
scheduler: {preemption: yes, min_run: 0s, grace: 10s}
pools:
  - name: default
    shape: {cpus: 1, mem: 64M}
default_pool: default
"""

# Counts to ten over all its attempts, as a training with checkpoints does. Who has only saved its work does not end
# with 0: that would say that it has finished.
WORK = """
trap 'echo saved; exit 9' USR1
n=$(cat state 2>/dev/null || echo 0)
echo "begin at $n"
while [ "$n" -lt 10 ]; do
    n=$((n + 1)); echo "step $n"; echo "$n" > state
    while [ -e hold ] && [ "$n" -eq 5 ]; do sleep 0.05; done
done
echo "done at $n"
"""


def slots(cloud):
    return next(p for p in cloud.json("pool", "list") if p["name"] == "default")["total_slots"]


def hold_all_but_one(cloud):
    """Takes every slot but one; returns the tasks that hold them."""
    tasks = [cloud.out("vbatch", "--priority", "100", "sleep", "600") for _ in range(slots(cloud) - 1)]
    for task in tasks:
        cloud.wait_state(task, "running")
    return tasks


def let_go(cloud, tasks):
    for task in tasks:
        cloud.virga("task", "cancel", task, check=0)
        cloud.wait_state(task, "cancelled")


def test_a_preempted_task_is_told_waits_for_nothing_and_ends_later(cloud):
    holder = hold_all_but_one(cloud)
    (cloud.work / "hold").touch()
    victim = cloud.out("vbatch", "--preemptible", "--priority", "10", "--grace-signal", "USR1", "--grace", "20s",
                       "sh", "-c", WORK)
    wait_for("it to be at work", lambda: (cloud.work / "state").exists()
             and (cloud.work / "state").read_text().strip() == "5")
    urgent = cloud.out("vbatch", "--priority", "90", "sh", "-c", "cat state > seen")
    assert cloud.virga("task", "wait", urgent).returncode == 0, cloud.logs()
    assert (cloud.work / "seen").read_text() == "5\n"
    (cloud.work / "hold").unlink()
    assert cloud.virga("task", "wait", victim).returncode == 0
    info = cloud.task(victim)
    assert (info["state"], info["preempted"], info["attempt"]) == ("succeeded", 1, 2)
    first = cloud.virga("task", "logs", "--attempt", "1", victim).stdout.decode()
    last = cloud.virga("task", "logs", victim).stdout.decode()
    assert first.startswith("begin at 0\n") and first.endswith("step 5\nsaved\n"), first
    assert last == "begin at 5\n" + "".join(f"step {i}\n" for i in range(6, 11)) + "done at 10\n"
    let_go(cloud, holder)


def test_one_that_finishes_in_its_time_is_done(cloud):
    holder = hold_all_but_one(cloud)
    script = "trap 'echo finished; exit 0' TERM; echo up > up; while :; do sleep 0.05; done"
    victim = cloud.out("vbatch", "--preemptible", "--priority", "10", "sh", "-c", script)
    wait_for("it to be at work", lambda: (cloud.work / "up").exists())
    urgent = cloud.out("vbatch", "--priority", "90", "true")
    assert cloud.virga("task", "wait", urgent).returncode == 0, cloud.logs()
    info = cloud.wait_state(victim, "succeeded")
    assert (info["attempt"], info["preempted"]) == (1, 0)
    let_go(cloud, holder)


def test_one_that_does_not_listen_is_killed_after_its_time(cloud):
    holder = hold_all_but_one(cloud)
    script = 'if [ ! -e runs ]; then trap "" TERM; echo run >> runs; while :; do sleep 0.1; done; fi; echo run >> runs'
    victim = cloud.out("vbatch", "--preemptible", "--priority", "10", "--grace", "1s", "sh", "-c", script)
    wait_for("it to be at work", lambda: (cloud.work / "runs").exists())
    urgent = cloud.out("vbatch", "--priority", "90", "true")
    assert cloud.virga("task", "wait", urgent).returncode == 0, cloud.logs()
    assert cloud.virga("task", "wait", victim).returncode == 0
    assert (cloud.work / "runs").read_text() == "run\nrun\n"
    assert cloud.task(victim)["preempted"] == 1
    let_go(cloud, holder)


def test_following_one_that_is_preempted_shows_all_and_gives_the_true_status(cloud):
    holder = hold_all_but_one(cloud)
    script = 'if [ -e again ]; then echo second; exit 7; fi; echo first; touch again; sleep 600'
    p = cloud.popen(["vbatch", "-f", "--preemptible", "--priority", "10", "--grace", "1s", "sh", "-c", script])
    wait_for("it to be at work", lambda: (cloud.work / "again").exists())
    p.send_signal(signal.SIGSTOP)  # it sleeps through all that follows, and shows it nevertheless
    urgent = cloud.out("vbatch", "--priority", "90", "true")
    assert cloud.virga("task", "wait", urgent).returncode == 0, cloud.logs()
    p.send_signal(signal.SIGCONT)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (7, b"first\nsecond\n"), err
    assert re.search(rb"preempt|gave way|give way|interrupt", err), err
    let_go(cloud, holder)


def test_a_command_that_somebody_waits_for_gives_way_only_when_it_agreed(cloud):
    """The others have the lowest priority of all, and are left alone."""
    others = [cloud.popen(["vrun", "-n", f"waited{i}", "--priority", "1", "sleep", "600"]) for i in range(slots(cloud) - 1)]
    for i in range(len(others)):
        wait_for("them to run", lambda: [t for t in cloud.json("task", "list") if (t["name"], t["state"]) == (f"waited{i}", "running")])
    victim = cloud.popen(["vrun", "-n", "agreed", "--preemptible", "--priority", "10", "sh", "-c", "echo begun; sleep 600"])
    assert victim.stdout.readline() == b"begun\n"
    urgent = cloud.out("vbatch", "--priority", "90", "true")
    assert cloud.virga("task", "wait", urgent).returncode == 0, cloud.logs()
    _, said = victim.communicate(timeout=60)
    assert victim.returncode == 143, said
    info = cloud.wait_state("agreed", "failed")
    assert (info["preempted"], info["attempt"]) == (1, 1) and info["reason"].startswith("it had to give way"), info
    assert all(p.poll() is None for p in others)
    for i, p in enumerate(others):
        cloud.virga("task", "cancel", f"waited{i}", check=0)
        p.communicate(timeout=60)
