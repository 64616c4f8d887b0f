"""Policy on real processes: who may have how much, reloads under load, what people are told, what is recorded."""
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from test_users import Person
from virga import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users"),
    pytest.mark.skipif(not shutil.which("useradd") or not shutil.which("setpriv"),
                       reason="useradd and setpriv are needed"),
]
GROUP = f"vgp{os.getpid() % 100000}"
ANN, BOB = GROUP + "a", GROUP + "b"
CPUS = os.cpu_count()


def config(pools="", queues="", scheduler=""):
    return f"""
access: {{groups: [{GROUP}]}}
pools:
- name: small
  shape: {{cpus: 0.25}}
  price: {{cpu_hour: 4}}
- name: whole
  shape: {{cpus: {CPUS}}}
{pools}
scheduler: {{min_run: 0s, grace: 5s{scheduler}}}
queues:
- name: main
  max_priority: 60
{queues}
"""


CONFIG = config()


@pytest.fixture(scope="module")
def people():
    subprocess.run(["groupadd", GROUP], check=True)
    made = []
    try:
        for name in (ANN, BOB):
            made.append(Person(name, [GROUP]))
        yield made
    finally:
        for person in made:
            person.remove()
        subprocess.run(["groupdel", GROUP], check=False)


@pytest.fixture(scope="module")
def ann(cloud, people):
    os.chmod(cloud.home, 0o711)
    return people[0]


@pytest.fixture(scope="module")
def bob(ann, people):
    return people[1]


def use(cloud, text):
    """Another configuration, taken over while everything goes on."""
    (cloud.home / "config.yaml").write_text(text)
    return cloud.virga("config", "reload", check=0).stdout.decode()


def submit(cloud, person, *argv):
    return person.run(cloud, "vbatch", *argv, check=0).stdout.decode().strip()


def states(cloud, ids):
    return [cloud.task(i)["state"] for i in ids]


def cancel(cloud, *ids):
    for i in ids:
        cloud.virga("task", "cancel", i)
        cloud.wait_state(i, "cancelled", "succeeded", "failed")


def ask(cloud, sql):
    with sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


def test_a_limit_holds_one_user_and_nobody_else(cloud, ann, bob):
    use(cloud, config(queues=f"  users: [{{name: {ANN}, limit: {{cpus: 0.5}}}}]"))
    hers = [submit(cloud, ann, "-P", "small", "sleep", "600") for _ in range(4)]
    his = submit(cloud, bob, "-P", "small", "sleep", "600")
    cloud.wait_state(his, "running")
    wait_for("two of hers to run", lambda: states(cloud, hers).count("running") == 2)
    assert states(cloud, hers).count("queued") == 2
    why = cloud.out("virga", "task", "why", hers[3])
    assert "limit" in why and ANN in why, why
    cancel(cloud, hers[0])
    wait_for("the next of hers", lambda: states(cloud, hers[1:]).count("running") == 2)
    cancel(cloud, *hers[1:], his)


def test_weights_divide_what_both_want(cloud, ann, bob):
    use(cloud, config(queues=f"  users: [{{name: {ANN}, weight: 300}}, {{name: {BOB}, weight: 100}}]"))
    block = cloud.out("vbatch", "-P", "whole", "sleep", "600")  # nobody's of the two: what it held is not theirs
    cloud.wait_state(block, "running")
    tasks = {}
    for _ in range(8):
        tasks[submit(cloud, bob, "-P", "whole", "sleep", "0.2")] = "bob"
        tasks[submit(cloud, ann, "-P", "whole", "sleep", "0.2")] = "ann"
    cancel(cloud, block)
    for i in tasks:
        assert cloud.virga("task", "wait", i).returncode == 0
    order = sorted(tasks, key=lambda i: cloud.task(i)["started_usec"])
    first = [tasks[i] for i in order[:8]]
    assert first.count("ann") >= 5, first
    assert "bob" in first, "and nobody starves"


def test_reloads_under_load_drop_nothing(cloud, ann):
    use(cloud, config())
    out = Path(ann.home) / "runs"
    ids = [submit(cloud, ann, "-P", "small", "sh", "-c", f"mkdir -p runs; echo x >> runs/{n}; sleep 0.3")
           for n in range(40)]
    for n in range(6):
        text = use(cloud, config(pools=f"- name: extra{n}\n", queues=f"  weight: {100 + n}"))
        assert "read again" in text
    bad = config() + "nonsense: 1\n"
    (cloud.home / "config.yaml").write_text(bad)
    refused = cloud.virga("config", "reload")
    assert refused.returncode == 125 and b"unknown key 'nonsense'" in refused.stderr, refused.stderr
    assert "extra5" in cloud.out("virga", "pool", "list"), "everything is as before"
    for i in ids:
        assert cloud.virga("task", "wait", i).returncode == 0
    assert [(out / str(n)).read_text() for n in range(40)] == ["x\n"] * 40, "each ran once"


def test_a_signal_reloads_too(cloud):
    (cloud.home / "config.yaml").write_text(config(pools="- name: signalled\n"))
    os.kill(cloud.pid("virgad"), signal.SIGHUP)
    wait_for("the pool", lambda: "signalled" in cloud.out("virga", "pool", "list"))


def test_a_pool_with_tasks_stays(cloud, ann):
    use(cloud, config(pools="- name: going\n"))
    task = submit(cloud, ann, "-P", "going", "sleep", "600")
    cloud.wait_state(task, "running")
    (cloud.home / "config.yaml").write_text(config())
    refused = cloud.virga("config", "reload")
    assert refused.returncode == 125 and b"pool 'going', which has 1 unfinished task" in refused.stderr
    assert cloud.task(task)["state"] == "running"
    cancel(cloud, task)
    cloud.virga("config", "reload", check=0)


def test_why_says_what_is_true(cloud, ann):
    use(cloud, config())
    block = submit(cloud, ann, "-P", "whole", "sleep", "600")
    cloud.wait_state(block, "running")
    assert "running on" in cloud.out("virga", "task", "why", block)
    waits = submit(cloud, ann, "-P", "whole", "true")
    assert cloud.task(waits)["state"] == "queued"
    assert "whole" in cloud.out("virga", "task", "why", waits)
    after = submit(cloud, ann, "--after", waits, "true")
    assert waits[:8] in cloud.out("virga", "task", "why", after)
    queue = cloud.out("virga", "queue", "-P", "whole")
    assert waits[:8] in queue and "main" in queue
    group = submit(cloud, ann, "-P", "whole", "-N", "3", "true")
    assert "0 of its 3 tasks are done, 0 run; the next: " in cloud.out("virga", "task", "why", group)
    cancel(cloud, block)
    assert cloud.virga("task", "wait", after).returncode == 0
    assert "succeeded" in cloud.out("virga", "task", "why", after)


def test_a_dry_run_tells_cost_and_refusal(cloud, ann):
    use(cloud, config())
    done = ann.run(cloud, "vbatch", "-P", "small", "--time", "15m", "--dry-run", "sleep", "1", check=0)
    text = (done.stdout + done.stderr).decode()
    assert re.search(r"expected cost .* USD", text), text
    huge = ann.run(cloud, "vbatch", "-P", "small", "--cpus", "4000", "--dry-run", "true")
    assert huge.returncode == 125 and b"CPU" in huge.stderr, huge.stderr
    assert cloud.json("task", "list", "--state", "queued") == []


def test_more_priority_than_allowed_is_refused(cloud, ann):
    use(cloud, config())
    done = ann.run(cloud, "vbatch", "--priority", "61", "true")
    assert done.returncode == 125 and b"at most 60 is allowed" in done.stderr, done.stderr


def test_a_quota_is_taken_back_and_the_bill_is_whole(cloud, ann, bob):
    use(cloud, config(queues=f"  users: [{{name: {ANN}, quota: {{cpus: {CPUS}}}}}]"))
    said = Path(bob.home) / "said"
    script = ("trap 'echo term >> said; exit 1' TERM; [ -e said ] && long=0.1 || long=600; echo begin >> said;"
              " sleep $long & wait; echo end >> said")
    his = submit(cloud, bob, "-P", "whole", "sh", "-c", script)
    cloud.wait_state(his, "running")
    wait_for("its first word", lambda: said.exists() and said.read_text())
    hers = submit(cloud, ann, "-P", "whole", "true")
    assert cloud.virga("task", "wait", hers).returncode == 0
    assert cloud.virga("task", "wait", his).returncode == 0
    assert said.read_text() == "begin\nterm\nbegin\nend\n"
    assert cloud.task(his)["preempted"] == 1
    load_of = f"SELECT attempts, held_usec, outcome FROM load WHERE task='{his}'"
    load = wait_for("the store to have its end", lambda: ask(cloud, load_of))
    rows = ask(cloud, "SELECT attempt, how, from_usec, until_usec, cpu_milli FROM attempts "
                      f"WHERE task='{his}' ORDER BY attempt")
    assert [r[:2] for r in rows] == [(1, "preempted"), (2, "ended")]
    assert all(r[2] <= r[3] and r[4] == CPUS * 1000 for r in rows)
    assert rows[0][3] <= rows[1][2], "one after the other"
    assert load == [(2, sum(r[3] - r[2] for r in rows), "succeeded")]


def test_the_ledger_survives_kills(cloud, ann):
    """Every attempt that ran is on the books once, whatever died meanwhile."""
    use(cloud, config())
    script = "mkdir -p led; date +%s%N >> led/$N.from; sleep 0.4; date +%s%N >> led/$N.to; exit $R"
    ids = []
    for n in range(12):
        fails = n % 3 == 0  # these are tried once more, and fail again
        ids.append(submit(cloud, ann, "-P", "small", "-e", f"N={n}", "-e", f"R={int(fails)}",
                          "--retries", "1", "sh", "-c", script))
        if n % 3 == 1:
            old = cloud.pid("virgad")
            os.kill(old, signal.SIGKILL)
            wait_for("a new virgad", lambda: cloud.pid("virgad") != old
                     and cloud.virga("status").returncode == 0)
    for i in ids:
        cloud.wait_state(i, "succeeded", "failed")
    for n, i in enumerate(ids):
        begins = (Path(ann.home) / f"led/{n}.from").read_text().split()
        ends = (Path(ann.home) / f"led/{n}.to").read_text().split()
        rows = wait_for("the store to have all", lambda: (r := ask(
            cloud, f"SELECT from_usec, until_usec, how FROM attempts WHERE task='{i}' ORDER BY attempt")) and len(r) >= len(begins) and r)
        assert len(rows) == len(begins) == (2 if n % 3 == 0 else 1), (n, rows, begins)
        last = 0
        for (start, end, how), stop in zip(rows, ends):
            assert how == "ended"
            assert last <= start < int(stop) // 1000 <= end, "one after the other, each until it had ended"
            last = end
