"""vbatch from a laptop: what the command needs is copied into the cloud's store, and the laptop may go away for good."""
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess

import pytest
from hosts import far_world, ready_nodes, wait_for
from virga import children_of, read_bytes

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]


@pytest.fixture(scope="module")
def far():
    network = far_world()
    yield network
    network.control.virga("down")
    network.close()


@pytest.fixture
def laptop(far):
    for host in far.hosts:
        host.heal()
    wait_for("the node to be ready", lambda: ready_nodes(far) == 1)
    for name in os.listdir(far.laptop.work):
        path = far.laptop.work / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return far.laptop


def left_behind(far, laptop, *argv):
    """Submits a batch task and takes the laptop away before it begins; its id."""
    far.control.virga("node", "drain", far.nodes[0].name, check=0)
    try:
        task = laptop.run(["vbatch", *argv], check=0).stdout.decode().strip()
        laptop.cut()
    finally:
        far.control.virga("node", "resume", far.nodes[0].name, check=0)
    return task


def end_of(far, task):
    return far.control.wait_state(task, "succeeded", "failed", "cancelled")


def holds(far):
    return [name for top, _, files in os.walk(f"{far.control.home}/control/env/u") if top.endswith("/hold") for name in files]


def test_the_client_goes_away_for_good_and_the_task_ends_well(far, laptop):
    (laptop.work / "sub").mkdir()
    (laptop.work / "sub" / "data").write_text("of the project\n" * 50000)
    (laptop.work / "main.py").write_text("import json\nprint(json.dumps(len(open('sub/data').read())))\n")
    script = "sleep 3; cat /opt/only-here/file sub/data | wc -c; laptop-tool x; python3 main.py"
    laptop.vrun("sh", "-c", script, check=0)  # what it uses is known then
    done = laptop.run(["vbatch", "--snapshot", "sh", "-c", script], check=0)
    task = done.stdout.decode().strip()
    laptop.cut()
    t = end_of(far, task)
    log = far.control.out("virga", "task", "logs", task)
    laptop.heal()
    assert t["state"] == "succeeded", (t, log)
    assert log == "750016\ntool of the laptop: x\n750000"


def test_a_command_that_nobody_ran_before_ends_well_without_its_client(far, laptop):
    """Nothing is known of what it uses: the guess and what lies around it must do."""
    laptop.run(["virga", "mirror", "stop", "--force"])
    shutil.rmtree(laptop.base / "home" / ".local", ignore_errors=True)
    (laptop.work / "x.py").write_text("import json, time\ntime.sleep(3)\nimport argparse, subprocess\n"
                                      "open('out', 'w').write(json.dumps(['ok']))\n")
    task = laptop.run(["vbatch", "python3", "x.py"], check=0).stdout.decode().strip()
    laptop.cut()
    t = end_of(far, task)
    log = far.control.run(["virga", "task", "logs", task])
    laptop.heal()
    assert t["state"] == "succeeded", (t["reason"], log.stderr[-2000:])
    laptop.run(["virga", "env", "apply", task], check=0)
    assert (laptop.work / "out").read_text() == '["ok"]'


def test_what_never_came_is_an_error_that_names_it(far, laptop):
    laptop.path("/opt/only-here/a/b/c").mkdir(parents=True)
    laptop.path("/opt/only-here/a/b/c/rare").write_bytes(os.urandom(1000000))
    (laptop.work / "go.sh").write_text("cd /opt/only-here/a/b; cat c/ra?e >/dev/null && echo came\n")
    task = left_behind(far, laptop, "--snapshot", "sh", "go.sh")
    t = end_of(far, task)
    log = far.control.run(["virga", "task", "logs", task])
    laptop.heal()
    assert t["state"] == "failed", (t, log)
    text = (log.stdout + log.stderr).decode() + str(t)
    assert "/opt/only-here/a/b" in text and "never came into the cloud's store" in text, text


def test_a_missing_file_is_asked_for_while_the_client_is_there(far, laptop):
    laptop.path("/opt/only-here/d/e/f").mkdir(parents=True)
    laptop.path("/opt/only-here/d/e/f/rare").write_bytes(b"rare\n" * 1000)
    task = laptop.run(["vbatch", "--snapshot", "sh", "-c", "cat /opt/only-here/d/e/f/ra?e | wc -c"], check=0).stdout.decode().strip()
    assert end_of(far, task)["state"] == "succeeded"
    assert far.control.out("virga", "task", "logs", task) == "5000"


def test_the_control_plane_and_its_store_die_while_the_client_is_gone(far, laptop):
    (laptop.work / "late").write_text("late\n")
    task = laptop.run(["vbatch", "--snapshot", "sh", "-c", "sleep 4; cat late"], check=0).stdout.decode().strip()
    laptop.cut()
    control = far.control
    old = control.pid("virgad")
    envd = [p for p in children_of(old) if b"envd" in read_bytes(f"/proc/{p}/cmdline")]
    os.kill(envd[0], signal.SIGKILL)
    os.kill(old, signal.SIGKILL)
    wait_for("another virgad", lambda: control.pid("virgad") not in (None, old))
    wait_for("its answers", lambda: control.virga("status").returncode == 0)
    t = end_of(far, task)
    laptop.heal()
    assert t["state"] == "succeeded", (t, control.out("virga", "task", "logs", task))
    assert control.out("virga", "task", "logs", task) == "late"
    wait_for("what it held to be let go", lambda: holds(far) == [])


def places(far):
    """Where the node has what pinned tasks change, on its disk."""
    return list(far.nodes[0].environment().glob("*/m-*/up-*"))


def has_places(far):
    kind = subprocess.run(["stat", "-f", "-c", "%T", far.nodes[0].home], stdout=subprocess.PIPE, check=True).stdout
    return kind.strip() in (b"ext2/ext3", b"xfs", b"btrfs", b"tmpfs")


def test_what_it_wrote_is_kept_and_applied_later(far, laptop):
    """Every kind of change, made while the laptop is gone: listed, applied once and again, with both kept where both
    changed, and removed."""
    w = laptop.work
    (w / "old").mkdir()
    (w / "old" / "a").write_text("a\n")
    (w / "old" / "b").write_text("b\n")
    (w / "away").mkdir()
    (w / "away" / "x").write_text("x\n")
    (w / "away" / "y").write_text("y\n")
    for name in "edit both gone stays mode same".split():
        (w / name).write_text(f"{name}\n")
    (w / "edit").chmod(0o640)
    script = """
sleep 3
echo more >> edit; echo node >> both; rm gone stays; chmod 755 mode
mv old new; rm -r away; mkdir -p deep/er; head -c 3000000 /dev/urandom > deep/er/big; touch empty
ln -s edit link; mkfifo pipe
sha256sum < deep/er/big
"""
    (w / "go.sh").write_text(script)
    task = left_behind(far, laptop, "--snapshot", "sh", "go.sh")
    if has_places(far):  # not in memory
        wait_for("its place on disk", lambda: len(places(far)) == 1)
    t = end_of(far, task)
    laptop.heal()
    assert t["state"] == "succeeded", (t, far.control.out("virga", "task", "logs", task))
    wait_for("its place to be cleared", lambda: places(far) == [])
    told = json.loads(laptop.run(["virga", "env", "diff", "-o", "json", task], check=0).stdout)
    changes = {os.path.relpath(c["path"], laptop.inner): (c["change"], c["kind"]) for c in told}
    assert changes == {
        "edit": ("changed", "file"), "both": ("changed", "file"), "mode": ("changed", "file"),
        "gone": ("removed", "file"), "stays": ("removed", "file"),
        "old": ("removed", "folder"), "old/a": ("removed", "file"), "old/b": ("removed", "file"),
        "away": ("removed", "folder"), "away/x": ("removed", "file"), "away/y": ("removed", "file"),
        "new": ("added", "folder"), "new/a": ("added", "file"), "new/b": ("added", "file"),
        "deep": ("added", "folder"), "deep/er": ("added", "folder"), "deep/er/big": ("added", "file"),
        "empty": ("added", "file"), "link": ("added", "link"), "pipe": ("added", "other")}, changes
    assert [c["size"] for c in told if c["path"].endswith("/big")] == [3000000]
    (w / "both").write_text("laptop\n")
    (w / "stays").write_text("laptop\n")
    (w / "away" / "mine").write_text("mine\n")
    for time in range(2):
        done = laptop.run(["virga", "env", "apply", task], check=1)  # there are conflicts
        assert b"2 conflicts" in done.stdout, done
        assert b"both changed on both sides" in done.stderr and b"stays was removed" in done.stderr, done
        assert (w / "edit").read_text() == "edit\nmore\n" and (w / "edit").stat().st_mode & 0o777 == 0o640
        assert (w / "both").read_text() == "laptop\n" and (w / f"both.conflict-{task[:8]}").read_text() == "both\nnode\n"
        assert not (w / "gone").exists() and (w / "stays").read_text() == "laptop\n"
        assert (w / "mode").stat().st_mode & 0o777 == 0o755 and (w / "same").read_text() == "same\n"
        assert not (w / "old").exists() and (w / "new" / "b").read_text() == "b\n"
        assert os.listdir(w / "away") == ["mine"]
        big = hashlib.sha256((w / "deep/er/big").read_bytes()).hexdigest()
        assert far.control.out("virga", "task", "logs", task).split()[0] == big
        assert os.readlink(w / "link") == "edit" and stat.S_ISFIFO((w / "pipe").stat().st_mode)
        assert len(list(w.glob("*.conflict-*"))) == 1 and not list(w.glob("**/.virga-apply-*"))
    assert b" 0 changes applied" in b" " + done.stdout
    assert task not in laptop.run(["virga", "env", "list"], check=0).stdout.decode()
    laptop.run(["virga", "env", "rm", task], check=0)
    gone = laptop.run(["virga", "env", "diff", task])
    assert gone.returncode != 0 and b"no changes of task" in gone.stderr, gone


def test_changes_are_applied_to_another_folder_and_nowhere_else(far, laptop):
    (laptop.work / "sub").mkdir()
    task = laptop.run(["vbatch", "--snapshot", "sh", "-c", "echo out > sub/out; echo no > /opt/only-here/no"],
                      check=0).stdout.decode().strip()
    assert end_of(far, task)["state"] == "succeeded"
    told = laptop.run(["virga", "env", "diff", task], check=0).stdout.decode().split()
    assert told == ["+", "4", "B", f"{laptop.inner}/sub/out"], told
    (laptop.path("/opt/only-here/else")).mkdir(exist_ok=True)
    astray = laptop.run(["env", "-C", "/", "virga", "env", "apply", task])
    assert astray.returncode != 0 and b"name the folder" in astray.stderr, astray
    laptop.run(["env", "-C", "/", "virga", "env", "apply", task, "/opt/only-here/else"], check=0)
    assert laptop.path("/opt/only-here/else/sub/out").read_text() == "out\n"
    assert not (laptop.work / "sub" / "out").exists()


def test_a_group_shares_one_copy_and_keeps_what_each_changed(far, laptop):
    (laptop.work / "in").write_text("of the laptop\n")
    (laptop.work / "go.sh").write_text("sleep 3; cat in; echo $VIRGA_SHARD > out.$VIRGA_SHARD; cat /opt/only-here/file\n")
    group = laptop.run(["vbatch", "-N", "3", "sh", "go.sh"], check=0).stdout.decode().strip()
    (laptop.work / "in").write_text("of later\n")
    laptop.cut()
    t = end_of(far, group)
    laptop.heal()
    assert t["state"] == "succeeded", (t, far.control.out("virga", "task", "logs", group))
    members = [m for m in far.control.json("task", "list", "-a", "--flat") if m["group"] == group]
    assert sorted(m["index"] for m in members) == [0, 1, 2] and all(m["snapshot"] for m in members), members
    for m in members:
        assert far.control.out("virga", "task", "logs", m["id"]) == "of the laptop\nfrom the laptop"
        done = laptop.run(["virga", "env", "apply", m["id"]], check=0)
        assert b"1 changes applied" in done.stdout, done
    for shard in range(3):
        assert (laptop.work / f"out.{shard}").read_text() == f"{shard}\n"
    assert (laptop.work / "in").read_text() == "of later\n"
    wait_for("what they held to be let go", lambda: holds(far) == [])


def test_a_batch_task_sees_what_was_there_when_it_was_submitted(far, laptop):
    """Without an option; whoever waits for it is told what is kept."""
    (laptop.work / "in").write_text("before\n")
    task = laptop.run(["vbatch", "sh", "-c", "sleep 2; cp in out"], check=0).stdout.decode().strip()
    (laptop.work / "in").write_text("after\n")
    done = laptop.run(["virga", "task", "wait", task], check=0)
    assert f"1 changes of the task are kept: 'virga env apply {task}'".encode() in done.stderr, done
    assert not (laptop.work / "out").exists()
    laptop.run(["virga", "env", "apply", task], check=0)
    assert (laptop.work / "out").read_text() == "before\n" and (laptop.work / "in").read_text() == "after\n"
    again = [laptop.run(["vbatch", "--key", "once", "sh", "-c", "sleep 3"], check=0).stdout for _ in range(2)]
    assert again[0] == again[1]  # the second has nothing to copy, and does not wait for it
    for more in ([], ["--preemptible"]):  # by its channel, and by its stored output
        shown = laptop.run(["vbatch", "-f", *more, "sh", "-c", "cat in; echo more >> out"], check=0)
        assert shown.stdout == b"after\n" and b"1 changes of the task are kept" in shown.stderr, shown


def test_live_the_laptop_serves_on_and_gets_what_was_written(far, laptop):
    (laptop.work / "in").write_text("of the project\n")
    task = laptop.run(["vbatch", "--live", "sh", "-c", "cat in > out; echo more >> out"], check=0).stdout.decode().strip()
    t = end_of(far, task)
    assert t["state"] == "succeeded", t
    assert (laptop.work / "out").read_text() == "of the project\nmore\n"
