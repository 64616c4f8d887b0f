"""What a task sees of the environment: it stays while the task runs, the next one sees what is, and overlays may lie
on it. Service and daemon are joined without a cloud by mirror-try, whose tasks share /tmp with this test."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from virga import BIN, wait_for

TRY = BIN.parent / "tests" / "fs" / "mirror-try"
pytestmark = pytest.mark.skipif(not TRY.exists() or os.geteuid() != 0, reason=f"needs root and {TRY}: run make first")

LOOK = """
import os, sys, time
top, signs = sys.argv[1:]
def look():
    for name in ("edited", "replaced", "removed", "folder/inner", "fresh"):
        try:
            print(name, open(f"{top}/{name}").read(), flush=True)
        except OSError as e:
            print(name, e.strerror, flush=True)
    print(*sorted(os.listdir(top)), flush=True)
held = open(f"{top}/replaced")
look()
run = sum(os.path.exists(f"{signs}/seen-{i}") for i in (1, 2)) + 1
open(f"{signs}/seen-{run}", "w").close()
while not os.path.exists(f"{signs}/go-{run}"):
    time.sleep(0.01)
look()
print("held", held.read(), flush=True)
"""
NESTED = """
set -e
mkdir -p $1/u $1/w $1/m
mount -t overlay -o lowerdir=/usr,upperdir=$1/u,workdir=$1/w nested $1/m
cmp $1/m/bin/env /usr/bin/env
echo new > $1/m/new
umount $1/m
cat $1/u/new
"""


@pytest.fixture
def tree():
    top = Path(tempfile.mkdtemp(prefix="vg-views-", dir="/var/cache"))
    top.chmod(0o755)
    (top / "folder").mkdir()
    for name in ("edited", "replaced", "removed", "folder/inner"):
        (top / name).write_text("one")
    yield top
    shutil.rmtree(top)


@pytest.fixture
def signs():
    top = Path(tempfile.mkdtemp(prefix="vg-signs-", dir="/tmp"))
    yield top
    shutil.rmtree(top)


def change(tree):
    (tree / "edited").write_text("two")
    (tree / "new").write_text("two")
    os.rename(tree / "new", tree / "replaced")
    (tree / "removed").unlink()
    shutil.rmtree(tree / "folder")
    (tree / "folder").mkdir()
    (tree / "folder/inner").write_text("two")
    (tree / "fresh").write_text("two")


BEFORE = ["edited one", "replaced one", "removed one", "folder/inner one", "fresh No such file or directory",
          "edited folder removed replaced"]
AFTER = ["edited two", "replaced two", "removed No such file or directory", "folder/inner two", "fresh two",
         "edited folder fresh replaced"]


def test_a_running_task_keeps_what_it_saw_and_the_next_one_sees_what_is(tree, signs):
    p = subprocess.Popen([TRY, "--runs", "2", "--", "/usr/bin/python3", "-c", LOOK, tree, signs], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    wait_for("the first task to have looked", lambda: (signs / "seen-1").exists())
    change(tree)
    (signs / "go-1").touch()
    wait_for("the second task to have looked", lambda: (signs / "seen-2").exists())
    (signs / "go-2").touch()
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    lines = out.splitlines()
    assert lines[:13] == BEFORE + BEFORE + ["held one"]
    assert lines[13:] == AFTER + AFTER + ["held two"]


@pytest.mark.parametrize("how", [[], ["--no-passthrough"], ["--compile", "--runs", "3"]])
def test_an_overlay_can_lie_on_a_tasks_root(how):
    with tempfile.TemporaryDirectory(prefix="vg-nested-", dir="/dev/shm") as top:
        done = subprocess.run([TRY, *how, "--", "sh", "-c", NESTED, "sh", top], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and set(done.stdout.split()) == {"new"}, done.stderr


def test_deep_passthrough_is_what_an_overlay_cannot_lie_on():
    """The control: without it the tests above would pass whatever the daemon does."""
    with tempfile.TemporaryDirectory(prefix="vg-nested-", dir="/dev/shm") as top:
        done = subprocess.run([TRY, "--deep", "--", "sh", "-c", NESTED, "sh", top], capture_output=True, text=True, timeout=120)
        if '"passthrough":0' in done.stderr:
            pytest.skip("this kernel has no FUSE passthrough")
        assert done.returncode != 0
