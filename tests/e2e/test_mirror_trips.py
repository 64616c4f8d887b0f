"""A command that was run before asks its client for nothing that could have been foreseen: not on another node, not after
the service has left, not again on the same node. Service and daemon are joined without a cloud by mirror-try; counted is
what was asked for, never how long it took: what was on its way when it was asked for depends on who is faster."""
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from virga import BIN

TRY = BIN.parent / "tests" / "fs" / "mirror-try"
pytestmark = pytest.mark.skipif(not TRY.exists() or os.geteuid() != 0, reason=f"needs root and {TRY}: run make first")

ON_ITS_WAY = {"told", "sent", "queued"}
COMMANDS = {
    "python": ["/usr/bin/python3", "-E", "-c", "import json, email.message, sqlite3"],
    "cc": ["/usr/bin/cc", "-O1", "-c", "-o", "t.o", "t.c"],
    "git": ["/usr/bin/git", "-c", "safe.directory=*", "status", "--porcelain"],
    "shell": ["/bin/sh", "-c", "ls /etc >/dev/null; nowhere 2>/dev/null; id >/dev/null; cat sub/folder/f; cat f"],
}


@pytest.fixture
def place():
    top = Path(tempfile.mkdtemp(prefix="vg-trips-", dir="/var/cache"))
    project = top / "project"
    (project / "sub" / "folder").mkdir(parents=True)
    (project / "t.c").write_text('#include <stdio.h>\nint main(void) { return puts("x") < 0; }\n')
    for name in ("f", "sub/folder/f"):
        (project / name).write_text("content\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-C", project]
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *argv], check=True)
    yield top
    shutil.rmtree(top)


def run(place, argv, *options):
    """What each run of the command asked for, and its numbers."""
    done = subprocess.run([TRY, "--asked", "--project", place / "project", "--state", place / "state", *options, "--", *argv],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                          env={"PATH": "/usr/bin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
                               "GIT_OPTIONAL_LOCKS": "0"})
    runs, asked = [], []
    for line in done.stderr.splitlines():
        if line.startswith("asked: "):
            asked.append(json.loads(line.removeprefix("asked: ")))
        elif line.startswith("{"):
            runs.append((json.loads(line), asked))
            asked = []
    assert runs and all(r["exit"] == 0 for r, _ in runs), done.stderr
    return runs


def unforeseen(asked):
    return [a for a in asked if a["why"] not in ON_ITS_WAY]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_was_used_before_is_not_asked_for(place, name):
    if not shutil.which(COMMANDS[name][0]):
        pytest.skip(f"{COMMANDS[name][0]} is not installed")
    first, elsewhere, again = run(place, COMMANDS[name], "--runs", "3", "--fresh-node")
    assert unforeseen(first[1]), "a command that was never run has to ask"
    assert unforeseen(elsewhere[1]) == [] and unforeseen(again[1]) == []
    # The service has left meanwhile; the second run meets the node that the first one filled.
    cold, warm = run(place, COMMANDS[name], "--runs", "2")
    assert unforeseen(cold[1]) == []
    assert warm[0]["demands"] - cold[0]["demands"] == len(warm[1])
    assert warm[1] == []
