"""vbatch with real programs: groups, sweeps, following, retries, keys, children, schedules, choosing and cancelling."""
import os
import re
import signal
import time

import pytest
from virga import ROOT, Terminal, wait_for

CONFIG = """
pools:
  - name: default
  - name: slots
    shape: {cpus: 1, mem: 64M}
default_pool: default
"""
ID = re.compile(r"^[0-9a-f]{16}$")


def batch(cloud, *argv):
    task = cloud.out("vbatch", *argv)
    assert ID.match(task), f"vbatch printed {task!r}, not an id alone"
    return task


def wait(cloud, task, status=0, timeout=120):
    done = cloud.virga("task", "wait", task, timeout=timeout)
    assert done.returncode == status, done.stderr.decode() + cloud.logs()
    return cloud.task(task)


def members(cloud, group):
    return sorted(cloud.json("task", "list", "-a", "--of", group, "--limit", "10000"), key=lambda t: t["index"])


def free_slots(cloud, pool="slots"):
    return next(p for p in cloud.json("pool", "list") if p["name"] == pool)["total_slots"]


# ---------------------------------------------------------------------- many


def test_two_thousand_tasks_are_all_done(cloud):
    done = cloud.sh("seq 2000 | xargs -P 8 -I{} vbatch -q -l many=yes true | sort -u | wc -l", timeout=300)
    assert int(done.stdout) == 2000, done.stderr[-2000:]

    def all_ended():
        status = cloud.json("status")
        return status["running"] + status["queued"] == 0

    wait_for("every task to end", all_ended, 120)
    tasks = cloud.json("task", "list", "-a", "-l", "many=yes", "--limit", "10000")
    assert len(tasks) == 2000
    assert {t["state"] for t in tasks} == {"succeeded"}


def test_every_shard_runs_once_and_knows_which_it_is(cloud):
    folder = cloud.work / "shards"
    folder.mkdir()
    group = batch(cloud, "-n", "shards", "-N", "256", "sh", "-c", 'echo "$VIRGA_SHARDS" >> shards/$VIRGA_SHARD')
    info = wait(cloud, group)
    assert sorted(int(p.name) for p in folder.iterdir()) == list(range(256))
    assert {p.read_text() for p in folder.iterdir()} == {"256\n"}
    assert (info["state"], info["members"], info["progress"]["succeeded"]) == ("succeeded", 256, 256)
    assert [t["index"] for t in members(cloud, group)] == list(range(256))


def test_shards_start_as_soon_as_slots_allow_and_no_sooner(cloud):
    slots = free_slots(cloud)
    (cloud.work / "at").mkdir()
    script = 'touch at/$VIRGA_SHARD; while [ ! -e at/go ]; do sleep 0.05; done'
    group = batch(cloud, "-P", "slots", "-N", str(slots * 3), "sh", "-c", script)
    at = lambda: len(list((cloud.work / "at").iterdir()))
    wait_for("every slot to be taken", lambda: at() >= slots)
    wait_for("as many to be known to run", lambda: cloud.task(group)["progress"]["running"] >= slots)
    progress = cloud.task(group)["progress"]
    assert (progress["running"], progress["queued"]) == (slots, slots * 2)
    assert at() == slots
    (cloud.work / "at" / "go").touch()
    wait(cloud, group)


# ---------------------------------------------------------------------- groups as one


def test_a_group_is_one_row_until_it_is_unfolded(cloud):
    group = batch(cloud, "-n", "folded", "-N", "5", "-l", "fold=1", "sleep", "60")
    rows = cloud.json("task", "list", "-l", "fold=1")
    assert [t["id"] for t in rows] == [group]
    assert rows[0]["progress"]["total"] == 5
    assert len(cloud.json("task", "list", "--flat", "-l", "fold=1")) >= 5
    wait_for("all to run", lambda: cloud.task(group)["progress"]["running"] == 5)
    table = cloud.out("virga", "task", "list", "-l", "fold=1")
    assert re.search(r"folded\s+running 0/5", table), table
    cloud.virga("task", "cancel", group, check=0)
    info = cloud.wait_state(group, "cancelled")
    assert info["progress"]["cancelled"] == 5


def test_the_status_of_a_group_is_its_first_bad_member_s(cloud):
    group = batch(cloud, "-N", "8", "sh", "-c", 'case $VIRGA_SHARD in 3) sleep 0.3; exit 30;; 6) exit 60;; esac')
    info = wait(cloud, group, 30)
    assert (info["state"], info["progress"]["failed"], info["progress"]["succeeded"]) == ("failed", 2, 6)
    assert [t["status"] for t in members(cloud, group)] == [0, 0, 0, 30, 0, 0, 60, 0]


def test_a_sweep_is_the_cross_product_in_order(cloud):
    done = cloud.run(["vbatch", "-f", "--sweep", "lr=0.1,0.01", "--sweep", "seed=1..3", "sh", "-c",
                      'echo "$lr $seed $VIRGA_SHARD/$VIRGA_SHARDS"'], check=0)
    want = [f"[{i}] {lr} {seed} {i}/6" for i, (lr, seed) in
            enumerate((lr, seed) for lr in ("0.1", "0.01") for seed in (1, 2, 3))]
    assert sorted(done.stdout.decode().splitlines()) == sorted(want)


def test_a_sweep_takes_its_values_from_a_file(cloud):
    (cloud.work / "values").write_text("with space\n\n$HOME;x\n")
    done = cloud.run(["vbatch", "-f", "--sweep", "v=@values", "sh", "-c", 'echo "<$v>"'], check=0)
    assert sorted(done.stdout.decode().splitlines()) == ["[0] <with space>", "[1] <$HOME;x>"]


# ---------------------------------------------------------------------- following


@pytest.mark.parametrize("script,status", [("true", 0), ("false", 1), ("exit 77", 77), ("kill -KILL $$", 137)])
def test_follow_exits_with_the_task_s_status(cloud, script, status):
    assert cloud.run(["vbatch", "-f", "sh", "-c", script]).returncode == status


def test_follow_of_a_group_marks_whole_lines_and_exits_alike(cloud):
    script = 'for i in 1 2 3; do printf "part "; sleep 0.05; echo "$i of $VIRGA_SHARD"; done; echo e >&2; ' \
             'printf last; exit $((VIRGA_SHARD == 2 ? 9 : 0))'
    done = cloud.run(["vbatch", "-f", "-N", "4", "sh", "-c", script])
    assert done.returncode == 9
    want = [f"[{s}] part {i} of {s}" for s in range(4) for i in (1, 2, 3)] + [f"[{s}] last" for s in range(4)]
    assert sorted(done.stdout.decode().splitlines()) == sorted(want)
    assert [line for line in sorted(done.stderr.decode().splitlines()) if line.startswith("[")] == \
        [f"[{s}] e" for s in range(4)]
    assert b"\033" not in done.stdout + done.stderr


def test_every_member_s_output_is_shown_once_live_and_later(cloud):
    done = cloud.run(["vbatch", "-f", "-N", "600", "sh", "-c", "echo a; echo b"], check=0)
    want = sorted(f"[{i}] {x}" for i in range(600) for x in "ab")
    assert sorted(done.stdout.decode().splitlines()) == want
    group = cloud.json("task", "list", "-a", "--limit", "1")[0]["id"]
    assert sorted(cloud.virga("task", "logs", group, check=0).stdout.decode().splitlines()) == want
    assert sorted(cloud.virga("task", "logs", "-f", group, check=0).stdout.decode().splitlines()) == want
    member = cloud.json("task", "list", "-a", "--of", group, "--limit", "1")[0]
    assert cloud.virga("task", "logs", member["id"], check=0).stdout == b"a\nb\n"
    refused = cloud.virga("task", "logs", "--tail", "1K", group)
    assert refused.returncode == 125 and b"name the member" in refused.stderr


def test_a_group_can_be_followed_from_its_middle(cloud):
    script = 'echo "begin $VIRGA_SHARD"; while [ ! -e middle ]; do sleep 0.05; done; echo "end $VIRGA_SHARD"'
    group = batch(cloud, "-N", "4", "sh", "-c", script)
    wait_for("all to run", lambda: cloud.task(group)["progress"]["running"] == 4)
    p = cloud.popen(["virga", "task", "logs", "-f", group])
    begun = sorted(p.stdout.readline() for _ in range(4))
    assert begun == [b"[%d] begin %d\n" % (i, i) for i in range(4)]
    (cloud.work / "middle").touch()
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    assert sorted(out.splitlines()) == [b"[%d] end %d" % (i, i) for i in range(4)]


def test_following_a_group_survives_the_control_plane(cloud):
    script = 'for i in 1 2 3 4 5 6; do echo "line $i"; sleep 0.2; done; exit $((VIRGA_SHARD == 1 ? 5 : 0))'
    path = cloud.work / "survives"
    with open(path, "wb") as out:
        p = cloud.popen(["vbatch", "-f", "-N", "3", "sh", "-c", script], stdout=out)
    wait_for("a first line", lambda: path.stat().st_size)
    os.kill(cloud.pid("virgad"), signal.SIGKILL)
    assert p.wait(timeout=120) == 5, p.stderr.read()
    lines = path.read_text().splitlines()
    for shard in range(3):
        assert [x for x in lines if x.startswith(f"[{shard}]")] == [f"[{shard}] line {i}" for i in range(1, 7)]


def test_follow_on_a_terminal_shows_progress_in_one_line(cloud):
    with Terminal(["vbatch", "-f", "-N", "3", "sh", "-c", "echo hello; sleep 0.5"], cloud.env, cloud.work) as t:
        t.expect(rb"\[[#-]+\] \d/3")
        assert t.wait() == 0
        assert re.search(rb"vbatch: 3/3", t.seen), t.seen


def test_watching_a_group_on_a_terminal_is_one_line_until_its_end(cloud):
    group = batch(cloud, "-N", "3", "sh", "-c", "while [ ! -e watched ]; do sleep 0.05; done; exit $((VIRGA_SHARD == 2))")
    with Terminal(["virga", "task", "watch", group], cloud.env, cloud.work) as t:
        t.expect(rb"\[-+\] 0/3, 3 running")
        (cloud.work / "watched").touch()
        assert t.wait() == 1
        assert b"3/3, 1 failed" in t.seen, t.seen


def test_what_a_retry_prints_follows_what_the_first_attempt_printed(cloud):
    script = 'n=$(cat tries 2>/dev/null || echo 0); echo $((n + 1)) > tries; echo "try $n"; test $n -ge 2'
    done = cloud.run(["vbatch", "-f", "--retries", "5", "sh", "-c", script])
    assert (done.returncode, done.stdout) == (0, b"try 0\ntry 1\ntry 2\n")


# ---------------------------------------------------------------------- retries, times, keys


def test_only_chosen_statuses_are_tried_again(cloud):
    script = 'echo x >> "$0"; exit "$1"'
    common = ["--retries", "3", "--retry-on", "75-77", "sh", "-c", script]
    wait(cloud, batch(cloud, *common, "chosen", "76"), 76)
    wait(cloud, batch(cloud, *common, "other", "1"), 1)
    assert len((cloud.work / "chosen").read_text().split()) == 4
    assert len((cloud.work / "other").read_text().split()) == 1


def test_a_retry_waits_and_says_until_when(cloud):
    task = batch(cloud, "--retries", "1", "--backoff", "1h", "false")
    info = wait_for("the first attempt to end",
                    lambda: (t := cloud.task(task))["attempt"] == 1 and t["state"] == "queued" and t["due_usec"] and t)
    assert 3000e6 < info["due_usec"] - time.time() * 1e6 < 3600e6
    cloud.virga("task", "cancel", task, check=0)
    cloud.wait_state(task, "cancelled")


def test_a_later_beginning_is_kept(cloud):
    task = batch(cloud, "--begin", "+1h", "true")
    info = cloud.task(task)
    assert info["state"] in ("queued", "blocked")
    assert abs(info["due_usec"] / 1e6 - time.time() - 3600) < 120
    cloud.virga("task", "cancel", task, check=0)
    soon = batch(cloud, "--begin", "+1s", "true")
    made = cloud.task(soon)
    info = wait(cloud, soon)
    assert info["started_usec"] >= made["due_usec"]


def test_a_key_makes_one_task(cloud):
    first = batch(cloud, "--key", "once", "sh", "-c", "echo x >> once")
    assert batch(cloud, "--key", "once", "sh", "-c", "echo x >> once") == first
    wait(cloud, first)
    assert batch(cloud, "--key", "once", "sh", "-c", "echo x >> once") == first
    assert (cloud.work / "once").read_text() == "x\n"
    refused = cloud.run(["vbatch", "--key", "once", "echo", "other"])
    assert refused.returncode == 125 and b"once" in refused.stderr, refused.stderr


def test_a_time_limit_ends_each_member(cloud):
    group = batch(cloud, "-N", "2", "--time", "1s", "sleep", "60")
    assert wait(cloud, group, 143)["state"] == "failed"


# ---------------------------------------------------------------------- children


def test_what_a_task_makes_is_folded_under_it_and_cancelled_with_it(cloud):
    parent = batch(cloud, "-n", "mother", "sh", "-c", "vbatch -q sleep 61 > child; vbatch -q -N 2 sleep 62 >> child; sleep 60")
    wait_for("the children", lambda: len((cloud.work / "child").read_text().split()) == 2
             if (cloud.work / "child").exists() else None)
    children = (cloud.work / "child").read_text().split()
    assert [t["id"] for t in cloud.json("task", "list", "-n", "mother")] == [parent]
    rows = cloud.json("task", "list")
    assert not {t["id"] for t in rows} & set(children), "children are rows of their own"
    assert {t["id"] for t in cloud.json("task", "list", "--of", parent)} >= set(children)
    assert cloud.task(children[0])["parent"] == parent
    cloud.virga("task", "cancel", parent, check=0)
    for task in (parent, *children):
        cloud.wait_state(task, "cancelled", "failed")


# ---------------------------------------------------------------------- choosing


def test_tasks_are_found_by_label_text_state_and_page_by_page(cloud):
    made = [batch(cloud, "-n", f"find-{i}", "-l", f"parity={i % 2}", "-l", "find=me", "true") for i in range(7)]
    for task in made:
        wait(cloud, task)
    find = lambda *args: [t["id"] for t in cloud.json("task", "list", "-a", "-l", "find=me", *args)]
    assert find() == made[::-1]
    assert find("-l", "parity=1") == [made[5], made[3], made[1]]
    assert find("--search", "find-4") == [made[4]]
    assert find("-s", "failed") == []
    assert find("--since", "1h") == made[::-1]
    pages, before = [], []
    while True:
        page = find("--limit", "3", *before)
        if not page:
            break
        pages += page
        before = ["--before", page[-1]]
    assert pages == made[::-1]


def test_cancel_by_label_says_how_many_and_asks_only_a_person(cloud):
    mine = [batch(cloud, "-l", "end=yes", "sleep", "60") for _ in range(3)]
    other = batch(cloud, "-l", "end=no", "sleep", "60")
    with Terminal(["virga", "task", "cancel", "-l", "end=yes"], cloud.env, cloud.work) as t:
        t.expect(r"cancel 3 tasks\? \[y/N\]")
        t.send("n\n")
        assert t.wait() == 1
    assert {cloud.task(task)["state"] for task in mine} <= {"queued", "starting", "running"}
    done = cloud.virga("task", "cancel", "-l", "end=yes", check=0)
    assert b"3" in done.stdout
    for task in mine:
        cloud.wait_state(task, "cancelled")
    assert cloud.task(other)["state"] in ("queued", "starting", "running")
    cloud.virga("task", "cancel", other, check=0)
    nothing = cloud.virga("task", "cancel", "-l", "end=never")
    assert nothing.returncode == 0 and b"nothing was cancelled" in nothing.stderr


# ---------------------------------------------------------------------- schedules


def test_a_schedule_makes_tasks_until_it_is_removed(cloud):
    often = batch(cloud, "-n", "often", "--every", "1s", "true")
    night = batch(cloud, "-n", "night", "--cron", "0 3 * * *", "true")
    tasks = lambda: cloud.json("task", "list", "-a", "-n", "often")
    wait_for("two tasks of the schedule", lambda: len(tasks()) >= 2)
    rows = {s["id"]: s for s in cloud.json("schedule", "list")}
    assert rows[often]["made"] >= 2 and rows[often]["name"] == "often"
    assert rows[night]["made"] == 0 and rows[night]["next_usec"] > time.time() * 1e6
    assert time.localtime(rows[night]["next_usec"] / 1e6)[3:6] == (3, 0, 0)
    for schedule in (often, night):
        cloud.virga("schedule", "remove", schedule, check=0)
    assert cloud.json("schedule", "list") == []
    n = len(tasks())
    time.sleep(2.2)  # two more would have come
    assert len(tasks()) <= n + 1


def test_a_wrong_schedule_is_refused_with_the_field(cloud):
    done = cloud.run(["vbatch", "--cron", "61 3 * * *", "true"])
    assert done.returncode == 125 and b"61" in done.stderr and done.stdout == b""


# ---------------------------------------------------------------------- before submission


def test_a_dry_run_starts_nothing_and_tells_whether_it_could_run(cloud):
    before = len(cloud.json("task", "list", "-a", "--limit", "10000"))
    done = cloud.run(["vbatch", "--dry-run", "true"], check=0)
    assert done.stdout.strip(), "a dry run says something"
    never = cloud.run(["vbatch", "--dry-run", "--cpus", "4000", "true"])
    assert never.returncode == 125 and never.stderr.startswith(b"vbatch: "), never.stderr
    assert len(cloud.json("task", "list", "-a", "--limit", "10000")) == before


@pytest.mark.parametrize("args,text", [
    (["--gpus", "1.5"], b"option '--gpus': '1.5' is not a number of GPUs"),
    (["--sweep", "lr"], b"option '--sweep': 'lr' is not NAME=VALUE,VALUE,..."),
    (["--gang"], b"a gang needs its size: write --gang -N 4"),
    (["--after", "no-such-task"], b"no-such-task"),
    (["--cron", "often"], b"is not minute, hour, day, month and weekday"),
    (["--begin", "yesterday"], b"option '--begin': 'yesterday' is not a time"),
])
def test_a_wrong_request_is_one_sentence_and_nothing_starts(cloud, args, text):
    done = cloud.run(["vbatch", *args, "true"])
    assert done.returncode == 125 and done.stdout == b""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(b"vbatch: ") and text in lines[0], done.stderr


# ---------------------------------------------------------------------- examples


@pytest.mark.parametrize("name,text", [
    ("sweep.sh", "one point failed with status 1"),
    ("steps.sh", "the sum is 5050"),
    ("gang.sh", "[3] rank 3 of 4: the sum is 30"),
    ("nightly.sh", "often"),
    ("batch.sh", "the task exited with 7"),
])
def test_examples_run_as_they_are(cloud, name, text):
    done = cloud.run([str(ROOT / "examples" / name)], check=0)
    assert text in done.stdout.decode(), done.stdout
