"""Simulated GPUs that programs can use: a driver behind the nodes of `--gpus fake:N` (tests/gpu/fake-rmd.c), its libraries where a
node looks for them, and a way to ask it what it sees. What it says is its own count, not the warden's."""
import atexit
import json
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from virga import BIN, seen_by_tasks



def outside_tmp(folder):
    """A task has a /tmp and a /var/tmp of its own: what it shall run from a tree that lies there is copied to where it sees it."""
    if not folder.resolve().is_relative_to("/tmp"):
        return folder
    copy = Path(tempfile.mkdtemp(prefix="vg-programs-", dir=seen_by_tasks()))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.p"))
    copy.chmod(0o755)
    return copy


GIB = 1 << 30
MIB = 1 << 20
PROGRAMS = outside_tmp(BIN.parent / "tests" / "gpu")
OWN = PROGRAMS / "cuda"  # the driver's libraries themselves, as a task would bring them along
FOLDER = "/usr/local/nvidia/lib64"  # where a node has them, and a task with a share finds ours
VERSION = "580.159.04"


class Driver:
    """Started before the cloud is: an agent looks for devices once."""

    def __init__(self, cloud, cards=2, card_mib=80 * 1024, libraries=("libcuda.so.1", "libnvidia-ml.so.1")):
        root = cloud.home / "node" / "fake-gpus"
        root.mkdir(parents=True)
        # Of a file system whose files have one number everywhere: managed memory is found by it.
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="vg-dev-", dir=shm if shm.is_dir() else None))
        self.folder.chmod(0o755)
        (root / "dev").symlink_to(self.folder)
        (root / FOLDER[1:]).mkdir(parents=True)
        for name in libraries:
            shutil.copy(OWN / name, root / FOLDER[1:] / name)
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(f"NVRM version: Simulated Kernel Module  {VERSION}  Test Build\n")
        self.process = subprocess.Popen([PROGRAMS / "fake-rmd", self.folder, str(cards), str(card_mib)], stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"

    def ask(self, *words):
        assert self.process.poll() is None, "the driver was asked what it does not know: see its words above"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(str(self.folder / "admin"))
            s.send(" ".join(map(str, words)).encode())
            return json.loads(s.recv(1 << 18))

    def stat(self):
        return self.ask("stat")

    def shares(self, card, names, usec=10_000_000):
        """How the card divides that much of virtual time among the groups of the processes that have these names, in percent."""
        got = {name: 0 for name in names}
        for g in self.ask("run", card, usec, *names):
            for name in names:
                if name in g["who"].split():
                    got[name] += g["usec"]
        return {name: 100 * v / usec for name, v in got.items()}

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
