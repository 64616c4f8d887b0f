"""vbatch pins what its task needs: the laptop may go for good."""
import pytest
from test_mirror_work import write_c_project
from virga import wait_for


@pytest.fixture(autouse=True)
def healed(far):
    far.laptop.heal()


def ended(far, task):
    return wait_for(f"the end of {task}", lambda: (t := far.control.json("task", "get", task))["state"] in
                    ("succeeded", "failed", "cancelled", "lost") and t, 120)


def test_a_batch_task_ends_well_without_its_client(far):
    laptop = far.laptop
    write_c_project(laptop.work / "batch")
    task = laptop.out("vbatch", "-C", f"{laptop.inner}/batch", "sh", "-c",
                      "sleep 2; cat /opt/only-here/file && laptop-tool away && make -j2 && ./prog")
    laptop.cut()  # for good
    info = ended(far, task)
    logs = far.control.virga("task", "logs", task).stdout
    assert info["state"] == "succeeded", logs
    assert b"from the laptop\n" in logs and b"tool of the laptop: away" in logs
    assert logs.endswith(b"%d\n" % (sum(range(30)) * 3))


def test_a_byte_that_never_came_is_named(far):
    laptop = far.laptop
    laptop.path("/opt/only-here/late").write_bytes(b"never asked for before" * 1000)
    task = laptop.out("vbatch", "sh", "-c", "sleep 3; cat $(printf '/opt/only-here/%s' la)te > /dev/null")
    laptop.cut()
    info = ended(far, task)
    assert info["state"] == "failed"
    said = far.control.virga("task", "logs", task).stdout + far.control.virga("task", "get", task).stdout
    assert b"/opt/only-here/late" in said
