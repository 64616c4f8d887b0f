"""kill -9 of virgad, of the agent, of both, at random moments under running and starting tasks: nothing that
was accepted is lost, nothing runs twice, no byte of output is lost or doubled, every status is right.

VIRGA_CHAOS_ROUNDS (16) and VIRGA_CHAOS_SEED (1) choose how long and which; a failing round names its seed."""
import os
import random
import signal
import time

import pytest
from virga import WAIT_S, wait_for

ROUNDS = int(os.environ.get("VIRGA_CHAOS_ROUNDS", "16"))
SEED = int(os.environ.get("VIRGA_CHAOS_SEED", "1"))
LINES = 40
EXPECTED = b"".join(b"line %d of %%s\n" % i for i in range(1, LINES + 1))
# Writes its mark once at the start, then numbered lines with small breaks, then exits with a status of its own.
SCRIPT = (f"echo $0 >> marks; i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i of $0; "
          "[ $((i % 8)) = 0 ] && sleep 0.02; done; exit $1")


class Round:
    """One round: tasks on their way, a kill among them, and the reckoning."""

    def __init__(self, cloud, number):
        self.cloud = cloud
        self.number = number
        self.random = random.Random(SEED * 100_003 + number)
        self.ps = []
        self.batches = []

    def name(self, kind):
        return f"{kind}-{self.number}-{len(self.ps) + len(self.batches)}"

    def start_vrun(self):
        name, status = self.name("run"), self.random.randrange(0, 100)
        self.ps.append((name, status, self.cloud.popen(["vrun", "-n", name, "sh", "-c", SCRIPT, name, str(status)])))

    def start_vbatch(self):
        name, status = self.name("batch"), self.random.randrange(0, 100)
        self.batches.append((name, status, self.cloud.popen(
            ["vbatch", "-n", name, "sh", "-c", SCRIPT, name, str(status)])))

    def start_some(self):
        for _ in range(self.random.randrange(1, 4)):
            self.random.choice((self.start_vrun, self.start_vbatch))()

    def kill(self):
        victims = self.random.choice((["virgad"], ["agent"], ["virgad", "agent"]))
        for victim in victims:
            pid = wait_for(f"the {victim}", lambda v=victim: self.cloud.pid(v))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it had died a moment ago and is being started again
        return victims

    def marks(self):
        path = self.cloud.work / "marks"
        return path.read_text().split() if path.exists() else []

    def check_runs(self):
        for name, status, p in self.ps:
            out, err = p.communicate(timeout=2 * WAIT_S)
            count = self.marks().count(name)
            if p.returncode == 125 and count == 0:
                assert out == b"" and err.count(b"\n") == 1, (name, out, err)  # refused, said so, never ran
                continue
            assert p.returncode == status, f"{name}: status {p.returncode}, not {status}: {err.decode()}"
            assert count == 1, f"{name} ran {count} times"
            assert out == EXPECTED.replace(b"%s", name.encode()), f"{name}: output differs: {out!r}"

    def check_batches(self):
        for name, status, p in self.batches:
            out, err = p.communicate(timeout=2 * WAIT_S)
            if p.returncode != 0:
                # Refused. It may have been accepted a moment before the answer was cut off; then it runs, once.
                assert p.returncode == 125 and err.count(b"\n") == 1, (name, p.returncode, err)
                assert self.marks().count(name) <= 1
                continue
            task = out.decode().strip()
            wait_for(f"{name} to end", lambda t=task: self.ended(t), 2 * WAIT_S)
            info = self.cloud.task(task)
            assert info["status"] == status, f"{name}: {info}"
            assert self.marks().count(name) == 1, f"{name} ran {self.marks().count(name)} times"
            logs = self.cloud.virga("task", "logs", task).stdout
            assert logs == EXPECTED.replace(b"%s", name.encode()), f"{name}: log differs: {logs!r}"

    def ended(self, task):
        """Asks, patiently: the control plane may be on its way up."""
        done = self.cloud.virga("task", "get", task, "-o", "json")
        return done.returncode == 0 and any(s in done.stdout for s in (b"succeeded", b"failed", b"cancelled"))

    def go(self):
        self.start_some()
        time.sleep(self.random.random() * 0.15)
        victims = self.kill()
        if self.random.random() < 0.5:
            time.sleep(self.random.random() * 0.05)
            self.start_some()
        if self.random.random() < 0.3:
            time.sleep(self.random.random() * 0.3)
            victims += self.kill()
        self.check_runs()
        self.check_batches()
        return victims


def test_kill_9_at_random_moments(cloud):
    steady = cloud.popen(["vrun", "-n", "steady", "sh", "-c", "echo ready; while read -r x; do echo back $x; done; exit 77"],
                         stdin=-1)
    assert steady.stdout.readline() == b"ready\n"
    killed = {"virgad": 0, "agent": 0}
    for number in range(ROUNDS):
        try:
            for victim in Round(cloud, number).go():
                killed[victim] += 1
        except AssertionError as e:
            raise AssertionError(f"round {number} of seed {SEED}: {e}\n{cloud.logs()}") from e
        steady.stdin.write(b"%d\n" % number)
        steady.stdin.flush()
        line = steady.stdout.readline()
        assert line == b"back %d\n" % number, f"the steady task was disturbed in round {number}: {line!r}"
    out, err = steady.communicate(timeout=WAIT_S)
    assert (steady.returncode, out) == (77, b""), err
    if ROUNDS >= 20:
        assert min(killed.values()) > 0, killed


@pytest.fixture(autouse=True)
def calm(cloud):
    """Every test begins with a cloud that answers and has a node."""
    wait_for("the cloud to be back", lambda: b'"nodes_ready": 1' in cloud.virga("status", "-o", "json").stdout)


def test_a_detached_task_survives_both(cloud):
    os.mkfifo(cloud.work / "go")
    task = cloud.out("vrun", "-d", "sh", "-c", "echo before; read -r x < go; echo after; exit 12")
    wait_for("the task", lambda: b"before" in cloud.virga("task", "logs", task).stdout)
    pids = {v: cloud.pid(v) for v in ("virgad", "agent")}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    (cloud.work / "go").write_text("go\n")
    wait_for("the end", lambda: b"failed" in cloud.virga("task", "get", task, "-o", "json").stdout)
    assert cloud.task(task)["status"] == 12
    assert cloud.virga("task", "logs", task).stdout == b"before\nafter\n"
    assert {v: cloud.pid(v) for v in pids} != pids


def test_a_task_that_ends_while_nobody_watches_is_reported(cloud):
    mark = cloud.work / "ended"
    task = cloud.out("vrun", "-d", "sh", "-c", f"echo out; while ! test -e {cloud.work}/now; do sleep 0.02; done;"
                     f" touch {mark}; exit 13")
    cloud.wait_state(task, "running")
    up = int((cloud.home / "up.pid").read_text())
    os.kill(up, signal.SIGSTOP)  # so that nothing is started again
    try:
        for victim in ("agent", "virgad"):
            os.kill(cloud.pid(victim), signal.SIGKILL)
        (cloud.work / "now").touch()
        wait_for("the end of the command", mark.exists)
    finally:
        os.kill(up, signal.SIGCONT)
    wait_for("the report", lambda: b"failed" in cloud.virga("task", "get", task, "-o", "json").stdout)
    assert cloud.task(task)["status"] == 13
    assert cloud.virga("task", "logs", task).stdout == b"out\n"


GROUPS = int(os.environ.get("VIRGA_CHAOS_GROUPS", "8"))
SHARDS = 6


class GroupRound(Round):
    """A group, one that waits for its success, one that waits for its failure, one that waits for its end."""

    def submit(self, *args):
        p = self.cloud.popen(["vbatch", *args])
        out, err = p.communicate(timeout=2 * WAIT_S)
        assert p.returncode == 0, err
        return out.decode().strip()

    def go(self):
        bad = self.random.choice((None, self.random.randrange(SHARDS)))
        name, mark = f"group-{self.number}", f"after-{self.number}"
        group = self.submit("-n", name, "-N", str(SHARDS), "sh", "-c",
                            f"echo {name}.$VIRGA_SHARD >> marks; sleep 0.0$VIRGA_SHARD; [ $VIRGA_SHARD != {bad} ] || exit 9")
        after = {how: self.submit(f"--{how}", name, "sh", "-c", f"echo {mark}.{how} >> marks")
                 for how in ("after", "after-success", "after-fail")}
        time.sleep(self.random.random() * 0.1)
        self.kill()
        if self.random.random() < 0.5:
            time.sleep(self.random.random() * 0.3)
            self.kill()
        for task in (group, *after.values()):
            wait_for(f"{task} to end", lambda t=task: self.ended(t), 2 * WAIT_S)
        self.check(group, after, name, mark, bad)

    def check(self, group, after, name, mark, bad):
        marks = self.marks()
        info = self.cloud.task(group)
        assert info["status"] == (0 if bad is None else 9), info
        for shard in range(SHARDS):
            assert marks.count(f"{name}.{shard}") == 1, f"{name}.{shard} ran {marks.count(f'{name}.{shard}')} times"
        expected = {"after": 1, "after-success": int(bad is None), "after-fail": int(bad is not None)}
        for how, count in expected.items():
            state = self.cloud.task(after[how])["state"]
            assert marks.count(f"{mark}.{how}") == count, f"{how}: {state}"
            assert state == ("succeeded" if count else "cancelled"), f"{how}: {state}"


def test_kill_9_under_groups_and_dependencies(cloud):
    for number in range(GROUPS):
        try:
            GroupRound(cloud, 1000 + number).go()
        except AssertionError as e:
            raise AssertionError(f"round {number} of seed {SEED}: {e}\n{cloud.logs()}") from e
