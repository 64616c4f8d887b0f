"""Following the output of a task that writes far more than the log keeps."""
import re

from virga import wait_for

CONFIG = """
limits:
  log_head: 16K
  log_tail: 16K
"""


def test_a_follower_sees_live_output_beyond_the_stored_head(cloud):
    gate = cloud.work / "gate"
    task = cloud.out("vrun", "-d", "sh", "-c",
                     f"seq 1 20000; until [ -e {gate} ]; do sleep 0.05; done; seq 20001 20010")
    seen = cloud.work / "seen"
    with open(seen, "wb") as out:
        follower = cloud.popen(["virga", "task", "logs", "-f", task], stdout=out)
        # Nothing after the head is stored while the task runs: what comes now is the keeper's own word.
        wait_for("line 20000 on the follower's side", lambda: seen.read_bytes().endswith(b"\n20000\n"))
        assert cloud.task(task)["state"] == "running"
        gate.touch()
        assert follower.wait(timeout=60) == 0
    lines = [int(n) for n in re.findall(rb"^\d+$", seen.read_bytes(), re.M)]
    assert lines[-1] == 20010
    assert lines == sorted(set(lines)), "lines came twice or out of order"


def test_the_end_is_not_repeated_after_live_output(cloud):
    task = cloud.out("vrun", "-d", "sh", "-c", "for i in $(seq 1 200); do seq $i$i 100 9$i$i; sleep 0.005; done; echo end")
    done = cloud.virga("task", "logs", "-f", task, check=0)
    assert done.stdout.endswith(b"end\n")
    assert done.stdout.count(b"end\n") == 1
