#!/usr/bin/env python3
"""Much of everything in one project view: names in a folder, files, bytes. VIRGA_TEST_LONG=1: as much as people have.

    scale.py --try PROGRAM

Every step must leave both sides alike; and the memory of both must not grow with the bytes, and little with the names.
"""
import filecmp
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import Control, differences, on_a_view, tree  # noqa: E402

LONG = os.environ.get("VIRGA_TEST_LONG") == "1"
NAMES = 100_000 if LONG else 2_000
BYTES = 6 << 30 if LONG else 64 << 20
SPARSE = 50 << 30
MEMORY_MIB = 64 + NAMES // 250  # of either side; 464 with 100,000 names


def names(folder):
    return sorted(os.listdir(folder))


def peaks():
    """MiB that the node (our parent) and its service have had at most."""
    node = os.getppid()
    found = []
    for pid in (node, *open(f"/proc/{node}/task/{node}/children").read().split()):
        if int(pid) != os.getpid():
            found += [int(x.split()[1]) >> 10 for x in open(f"/proc/{pid}/status") if x.startswith("VmHWM")]
    return found


class Steps:
    def __init__(self):
        self.ctl, self.view, self.client = Control(os.environ["CTL"]), os.environ["VIEW"], os.environ["CLIENT"]

    def barrier(self):
        said = self.ctl("barrier")
        assert said.startswith("0"), said

    def one_folder(self):
        """Many names in one folder of the client: listed, looked at, added to, removed."""
        v, c = self.view + "/many", self.client + "/many"
        assert names(v) == names(c) and len(names(v)) == NAMES
        assert sum(e.stat().st_size for e in os.scandir(v)) == sum(e.stat().st_size for e in os.scandir(c)) > 0
        open(v + "/new", "w").close()
        self.barrier()
        open(c + "/theirs", "w").close()
        self.ctl("run")
        assert names(v) == names(c) and len(names(v)) == NAMES + 2
        for name in names(v)[::2]:
            os.unlink(f"{v}/{name}")
        self.barrier()
        assert names(v) == names(c) and len(names(v)) == NAMES // 2 + 1
        shutil.rmtree(v)
        self.barrier()
        assert not os.path.exists(c)

    def many_files(self):
        """Many small files made here, in one folder and in many."""
        for i in range(NAMES):
            folder = f"{self.view}/made/" + ("flat" if i % 2 else f"{i // 1000}")
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{i}", "wb") as f:
                f.write(b"%d\n" % i * 20)
        self.barrier()
        assert not differences(tree(self.view + "/made"), tree(self.client + "/made"), "made: view, client")
        assert sum(len(files) for _, _, files in os.walk(self.client + "/made")) == NAMES

    def holes(self):
        """A file that is long and nearly empty, made here and made there."""
        marks = [i * (SPARSE // 8) + 12345 for i in range(8)]
        for top, other in ((self.view, self.client), (self.client, self.view)):
            name = "/sparse" + str(top == self.view)
            with open(top + name, "wb") as f:
                f.truncate(SPARSE)
                for at in marks:
                    f.seek(at)
                    f.write(b"%20d" % at)
            self.barrier()
            self.ctl("run")
            with open(other + name, "rb") as f:
                for at in marks:
                    f.seek(at - 10)
                    assert f.read(40) == bytes(10) + b"%20d" % at + bytes(10), (name, at)
        with open(self.view + "/sparseFalse", "r+b") as f:  # the client's: a piece in the middle
            f.seek(SPARSE // 2)
            f.write(b"here")
        self.barrier()
        for name in ("/sparseTrue", "/sparseFalse"):
            st = os.stat(self.client + name)
            assert st.st_size == SPARSE and st.st_blocks * 512 < 64 << 20, (name, st)

    def many_bytes(self):
        """More than either side could hold in memory."""
        block = os.urandom((1 << 20) - 8)
        with open(self.view + "/big", "wb") as f:
            for i in range(BYTES >> 20):
                f.write(i.to_bytes(8, "little") + block)
        self.barrier()
        assert os.stat(self.client + "/big").st_size == BYTES
        assert filecmp.cmp(self.view + "/big", self.client + "/big", shallow=False)
        os.unlink(self.view + "/big")


def work():
    steps = Steps()
    for step in (steps.one_folder, steps.many_files, steps.holes, steps.many_bytes):
        began = time.monotonic()
        step()
        print(f"{step.__name__}: {time.monotonic() - began:.1f} s, at most {peaks()} MiB of memory", flush=True)
        assert len(peaks()) == 2 and max(peaks()) < MEMORY_MIB, f"more than {MEMORY_MIB} MiB"
    return 0


def prepare(top):
    many = os.path.join(top, "client/p/many")
    os.makedirs(many)
    for i in range(NAMES):
        with open(f"{many}/file-{i:06}", "w") as f:
            f.write("x" * (i % 50))


if __name__ == "__main__":
    sys.exit(on_a_view(work, "scale", prepare))
