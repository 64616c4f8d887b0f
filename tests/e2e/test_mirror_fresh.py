"""What was written on one side is there on the other: an edit on the laptop for the very next command, and what a
command wrote in the project when it returns."""
import os
import random
import threading

from trees import differences, tree
from virga import LONG, wait_for

EDITS = 1000 if LONG else 50
FILES = 10_000 if LONG else 1000


class Busy:
    """Other commands of the same person meanwhile, reading and writing in the same project."""

    def __init__(self, laptop, n=2):
        self.laptop, self.over, self.failed, self.runs = laptop, threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(n)]

    def work(self, number):
        while not self.over.is_set():
            name = f"busy-{number}"
            done = self.laptop.vrun("sh", "-c", f"echo {self.runs} > {name}; ls > /dev/null; cat {name}")
            self.runs += 1
            if done.returncode != 0:
                self.failed.append(done.stderr)
                return

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        for t in self.threads:
            t.join()


def edit(path, content, how):
    """The ways in which editors write a file."""
    if how == 0:  # in place; the length stays
        with open(path, "r+b" if path.exists() else "wb") as f:
            f.write(content)
            f.truncate()
    elif how == 1:  # a new file takes its name
        other = path.with_suffix(".new")
        other.write_bytes(content)
        os.rename(other, path)
    else:  # gone, and made again
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_the_next_command_sees_every_edit(far):
    laptop = far.laptop
    rng = random.Random(4)
    (laptop.work / "deep/er").mkdir(parents=True, exist_ok=True)
    names = ["edited", "deep/edited", "deep/er/edited"]
    with Busy(laptop) as busy:
        for i in range(EDITS):
            name = rng.choice(names)
            content = b"%08d of the same length\n" % i
            edit(laptop.work / name, content, rng.randrange(3))
            done = laptop.vrun("cat", name)
            assert (done.stdout, done.returncode) == (content, 0), f"edit {i} of {name}: {done.stderr}"
    assert not busy.failed, busy.failed[0]
    assert busy.runs > 0


def test_the_next_command_sees_what_is_new_gone_moved_or_changed_in_its_mode(far):
    laptop = far.laptop
    folder = laptop.work / "moving"
    folder.mkdir()

    def listing():
        return laptop.out("vrun", "find", "moving", "-printf", "%P %y %m %s\\n").splitlines()

    assert listing() == laptop.plain("find", "moving", "-printf", "%P %y %m %s\\n").stdout.decode().splitlines()
    for step in ("touch moving/a", "mkdir moving/d", "chmod 640 moving/a", "mv moving/a moving/d/b", "ln -s d/b moving/l",
                 "mv moving/d moving/e", "echo more >> moving/e/b", "rm moving/l", "mkdir -p moving/x/y/z && touch moving/x/y/z/f",
                 "rm -r moving/x", "ln moving/e/b moving/hard", "truncate -s 100000 moving/hard"):
        laptop.plain("sh", "-c", step, check=0)
        want = sorted(laptop.plain("find", "moving", "-type", "f", "-printf", "%P %y %m %s\\n").stdout.decode().splitlines())
        got = sorted(line for line in listing() if " f " in line)
        assert got == want, step


def test_an_edit_outside_the_project_is_seen_too(far):
    laptop = far.laptop
    settings = laptop.path("/home/dev/.config/tool")
    settings.mkdir(parents=True)
    system = laptop.path("/opt/only-here/file")
    for i in range(5):
        (settings / "rc").write_text(f"setting {i}\n")
        laptop.plain("sh", "-c", f"echo system {i} > /opt/only-here/file", check=0)
        assert laptop.out("vrun", "cat", "/home/dev/.config/tool/rc") == f"setting {i}"
        assert laptop.out("vrun", "cat", str("/opt/only-here/file")) == f"system {i}"
    assert system.exists()


def test_an_edit_of_what_a_command_made_is_seen(far):
    """Folders that the node made are as good as those it was told of."""
    laptop = far.laptop
    laptop.vrun("sh", "-c", "mkdir -p made-there/in/side && echo one > made-there/in/side/f && echo one > made-there/g", check=0)
    for i, name in enumerate(["in/side/f", "g"] * 3):
        edit(laptop.work / "made-there" / name, b"edit %d\n" % i, i % 3)
        assert laptop.vrun("cat", f"made-there/{name}").stdout == b"edit %d\n" % i
    (laptop.work / "made-there/in/side/new").write_text("new\n")
    assert laptop.out("vrun", "ls", "made-there/in/side").split() == ["f", "new"]
    laptop.plain("sh", "-c", "rm -r made-there && mkdir made-there", check=0)
    assert laptop.vrun("ls", "made-there").stdout == b""
    laptop.vrun("sh", "-c", "mkdir -p made-there/in/side && echo again > made-there/in/side/f", check=0)
    assert (laptop.work / "made-there/in/side/f").read_text() == "again\n"


# Run on the node and, to compare with, on the laptop: the same tree must come of it.
MAKER = r'''
import os, sys
root, n = sys.argv[1], int(sys.argv[2])
os.mkdir(root)
os.umask(0)
t = 1_600_000_000_123_456_789
for i in range(n):
    folder = f"{root}/d{i // 100}/e{i // 10 % 10}"
    os.makedirs(folder, 0o755, exist_ok=True)
    name = f"{folder}/file {i} \u00e9\u4e2d" if i % 7 == 0 else f"{folder}/f{i}"
    kind = i % 20
    if kind == 1:
        os.symlink(f"../nowhere/{i}", name)
    elif kind == 2 and i > 20:
        os.link(last, name)
    elif kind == 3:
        with open(name, "wb") as f:
            f.truncate(1 << 20)
            f.seek(300_000)
            f.write(b"in the middle")
    elif kind == 4:
        os.mkfifo(name, 0o640)
    else:
        with open(name, "wb") as f:
            f.write(os.fsencode(f"content {i} ") * (i % 500))
        os.chmod(name, [0o644, 0o600, 0o755, 0o444, 0o4755, 0o666][i % 6])
        if i % 5 == 0:
            os.setxattr(name, "user.note", b"xattr %d" % i)
        if i % 11 == 0:
            os.rename(name, name + ".moved")
            name += ".moved"
        last = name
    os.utime(name, ns=(t + i, t + 1000 * i), follow_symlinks=False)
with open(f"{root}/big", "wb") as f:
    f.write(os.urandom(0) + bytes(range(256)) * 20_000)
os.utime(f"{root}/big", ns=(t, t))
'''


def test_what_a_command_wrote_is_there_when_it_returns(far):
    laptop = far.laptop
    (laptop.work / "maker.py").write_text(MAKER)
    laptop.plain("/usr/bin/python3", "maker.py", "expected", str(FILES), check=0)
    done = laptop.vrun("/usr/bin/python3", "maker.py", "made", str(FILES), timeout=600)
    assert done.returncode == 0, done.stderr
    made = tree(laptop.work / "made")  # at once: nothing may come later
    expected = tree(laptop.work / "expected")
    assert len(expected) > FILES
    assert differences(expected, made) == []


def test_a_command_that_fails_or_is_killed_has_written_what_it_wrote(far):
    laptop = far.laptop
    done = laptop.vrun("sh", "-c", "seq 10000 > counted; exit 3")
    assert done.returncode == 3
    assert (laptop.work / "counted").read_text().split()[-1] == "10000"
    done = laptop.vrun("sh", "-c", "echo before > killed; kill -9 $$")
    assert done.returncode == 137
    assert (laptop.work / "killed").read_text() == "before\n"


def test_both_sides_changed_the_same_file(far):
    """The laptop's version stays, the task's is kept beside it, and vrun says so."""
    laptop = far.laptop
    path = laptop.work / "both"
    path.write_text("first\n")
    script = "trap 'echo of the task > both; echo written; exit' USR1; cat both; while :; do sleep 0.05; done"
    p = laptop.popen(["vrun", "-n", "both", "sh", "-c", script])
    assert p.stdout.readline() == b"first\n"
    laptop.cut()  # so that neither hears of the other before both have written
    try:
        path.write_text("of the laptop\n")
        far.control.virga("task", "signal", "both", "USR1", check=0)
        wait_for("the task to have written", lambda: "written" in far.control.out("virga", "task", "logs", "both"))
    finally:
        laptop.heal()
    out, err = p.communicate(timeout=120)
    assert out == b"written\n", err
    assert path.read_text() == "of the laptop\n"
    kept = list(laptop.work.glob("both.conflict-*"))
    assert [k.read_text() for k in kept] == ["of the task\n"]
    assert b"both" in err and b"conflict" in err


def test_with_sync_a_closed_file_is_at_the_laptop_while_the_command_runs(far):
    laptop = far.laptop
    p = laptop.popen(["vrun", "--sync", "sh", "-c", "echo now > synced; echo closed; read x"], stdin=-1)
    assert p.stdout.readline() == b"closed\n"
    assert (laptop.work / "synced").read_text() == "now\n"
    p.communicate(b"\n", timeout=60)
    assert p.returncode == 0
