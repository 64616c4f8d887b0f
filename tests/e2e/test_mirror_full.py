"""A node whose disk is small: content that nobody uses makes room; when there is none, new tasks wait and running ones
go on."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import FarNode
from virga import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]

DISK = 128 << 20
BIG = DISK // 16  # two of them are more than a cache may have, which is a tenth


class SmallDisk(FarNode):
    """What it keeps lies on a small file system, in a mount namespace of its own."""

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        (self.home / "node").mkdir()
        script = f"mount -t tmpfs -o size={DISK} none $1/node && echo ready && exec sleep infinity"
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(self.home)],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"ready\n"
        self.disk = Path(f"/proc/{self.holder.pid}/root{self.home}/node")

    def inside(self, argv):
        return ["nsenter", f"--net=/run/netns/{self.netns}", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *argv]

    def environment(self):
        return self.disk / "fs"

    def remove(self):
        self.kill_leftovers()
        self.holder.kill()
        self.holder.wait()
        super().remove()


KIND = SmallDisk


def size_of(laptop, *names):
    return laptop.vrun("sh", "-c", f"cat {' '.join(names)} | wc -c", check=0, timeout=120).stdout


@pytest.fixture(scope="module")
def files(far):
    names = [f"/opt/only-here/big{i}" for i in range(4)]
    for name in names:
        far.laptop.path(name).write_bytes(os.urandom(BIG))
    return names


def test_what_nobody_uses_makes_room(far, files):
    for name in files:
        assert size_of(far.laptop, name) == b"%d\n" % BIG
    assert far.nodes[0].counters()["evicted"] > 0


def fill(path):
    with open(path, "ab", buffering=0) as f:
        try:
            while True:
                f.write(bytes(1 << 16))
        except OSError:
            pass


def test_a_full_disk_keeps_new_tasks_waiting_and_running_ones_go_on(far, files):
    laptop, node = far.laptop, far.nodes[0]
    node.forget()  # nothing is there that could make room
    # What it still does then needs no program that nobody holds.
    p = laptop.popen(["vrun", "sh", "-c", f"exec 9<{files[0]}; cat {files[0]} | wc -c; read x; read -r y <&9; echo still here"],
                     stdin=subprocess.PIPE)
    assert p.stdout.readline() == b"%d\n" % BIG
    fill(node.disk / "ballast")
    q = laptop.popen(["vrun", "cat", "/opt/only-here/file"])
    try:
        said = q.stderr.readline()  # why it was sent back, or, when vrun was not there to hear it, that it waits
        assert b"disk is full: it takes no task" in said or b"no node of pool default takes tasks now" in said
        out, err = p.communicate(b"go\n", timeout=120)
        assert (p.returncode, out) == (0, b"still here\n"), err
        assert q.poll() is None
        (node.disk / "ballast").unlink()
        out, err = q.communicate(timeout=120)
        assert (q.returncode, out) == (0, b"from the laptop\n"), err
        assert (said + err).count(b"disk is full") <= 1 and err.count(b"takes tasks now") <= 1, err
    finally:
        (node.disk / "ballast").unlink(missing_ok=True)
        for each in (p, q):
            each.kill()
            each.wait()
    wait_for("no task to be left", lambda: not far.control.json("task", "list"))
