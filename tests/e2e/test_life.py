"""The life of a cloud: up, down, up again, several side by side."""
import os
import tempfile
from pathlib import Path

import pytest
from virga import WAIT_S, seen_by_tasks, wait_for


def test_up_needs_no_configuration_and_down_leaves_nothing(make_cloud):
    cloud = make_cloud()
    up = cloud.up()
    assert b"up" in up.stdout
    assert cloud.vrun("echo", "hello").stdout == b"hello\n"
    assert cloud.down().returncode == 0
    assert cloud.leftovers() == []


def test_the_leftover_check_can_fail(make_cloud):
    cloud = make_cloud()
    cloud.up()
    left = "\n".join(cloud.leftovers())
    assert "process" in left and "socket" in left
    cloud.down()


def test_up_twice_is_harmless(make_cloud):
    cloud = make_cloud()
    cloud.up()
    pid = cloud.pid("virgad")
    assert b"already" in cloud.up().stdout
    assert cloud.pid("virgad") == pid


def test_down_twice_is_harmless(make_cloud):
    cloud = make_cloud()
    cloud.up()
    assert cloud.down().returncode == 0
    assert cloud.down().returncode == 0


def test_down_ends_running_tasks(make_cloud):
    cloud = make_cloud()
    cloud.up()
    p = cloud.popen(["vrun", "sh", "-c", "echo ready; exec sleep 300"])
    assert p.stdout.readline() == b"ready\n"
    assert cloud.down().returncode == 0
    assert p.wait(timeout=WAIT_S) != 0
    assert cloud.leftovers() == []


def test_history_and_logs_survive_a_restart(make_cloud):
    cloud = make_cloud()
    cloud.up()
    task = cloud.out("vrun", "-d", "-n", "before", "sh", "-c", "echo remembered; exit 3")
    assert cloud.virga("task", "wait", task).returncode == 3
    cloud_id = cloud.json("status")["cloud"]
    node_id = cloud.json("node", "list")[0]["id"]
    assert cloud.down().returncode == 0
    cloud.up()
    info = cloud.task(task)
    assert (info["state"], info["status"], info["name"]) == ("failed", 3, "before")
    assert cloud.virga("task", "logs", task).stdout == b"remembered\n"
    assert cloud.json("status")["cloud"] == cloud_id
    assert [n["id"] for n in cloud.json("node", "list")] == [node_id]
    assert cloud.vrun("echo", "again").stdout == b"again\n"


@pytest.mark.parametrize("way", [[], ["-s", "same"]], ids=["sandboxes used again", "a session"])
def test_what_is_replaced_on_the_node_is_seen_by_the_next_command(make_cloud, way):
    """Outside the project, too, and whoever looked before: files renamed over, folders renamed over, new ones, and none any more."""
    cloud = make_cloud()
    cloud.up()
    with tempfile.TemporaryDirectory(prefix="vg-seen-", dir=seen_by_tasks()) as at:
        at = Path(at)
        at.chmod(0o755)
        look = ["vrun", *way, "sh", "-c", f"cat {at}/file {at}/folder/file 2>/dev/null; test -e {at}/new && echo new; :"]
        for i in range(6):
            (at / "next").write_text(f"file {i}\n")
            (at / "next").rename(at / "file")
            if (at / "folder").exists():
                (at / "folder").rename(at / f"old {i}")
            (at / "folder").mkdir()
            (at / "folder" / "file").write_text(f"folder {i}\n")
            (at / "new").touch() if i % 2 else (at / "new").unlink(missing_ok=True)
            assert cloud.run(look).stdout.decode() == f"file {i}\nfolder {i}\n" + ("new\n" if i % 2 else "")


def test_tasks_can_outlive_a_planned_restart(make_cloud):
    cloud = make_cloud()
    cloud.up()
    os.mkfifo(cloud.work / "go")
    task = cloud.out("vrun", "-d", "sh", "-c", "echo before; read -r x < go; echo after; exit 4")
    wait_for("the task", lambda: b"before" in cloud.virga("task", "logs", task).stdout)
    assert cloud.virga("down", "--keep-tasks").returncode == 0
    cloud.up()
    assert cloud.wait_state(task, "running")
    (cloud.work / "go").write_text("go\n")
    assert cloud.virga("task", "wait", task).returncode == 4
    assert cloud.virga("task", "logs", task).stdout == b"before\nafter\n"


def test_several_clouds_side_by_side(make_cloud):
    clouds = [make_cloud() for _ in range(3)]
    for c in clouds:
        c.up()
    for i, c in enumerate(clouds):
        assert c.vrun("-n", f"of-{i}", "echo", str(i)).stdout == b"%d\n" % i
    for i, c in enumerate(clouds):
        names = {t["name"] for t in c.json("task", "list", "-a")}
        assert names == {f"of-{i}"}
    assert clouds[0].down().returncode == 0
    assert clouds[0].leftovers() == []
    for c in clouds[1:]:
        assert c.vrun("echo", "still").stdout == b"still\n"


def test_a_home_that_was_moved_away_is_a_new_cloud(make_cloud):
    cloud = make_cloud()
    cloud.up()
    first = cloud.json("status")["cloud"]
    cloud.down()
    other = make_cloud()
    other.up()
    assert other.json("status")["cloud"] != first
