#!/usr/bin/env python3
"""What a project view must keep in memory, and what it must not lose silently.

    kept.py --try PROGRAM
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import Control, on_a_view  # noqa: E402

WORD = b"a word that must not lie on the node's disk "
OPEN = b"a word that may lie on the node's disk "
MADE = b"what the task itself wrote " * 10


def on_disk(top, word):
    """Files below the node's own folders that hold it."""
    found = []
    for part in ("backing", "cache", "log"):
        for folder, _, files in os.walk(os.path.join(top, part)):
            for name in files:
                try:
                    with open(os.path.join(folder, name), "rb") as f:
                        if word in f.read():
                            found.append(os.path.join(folder, name))
                except FileNotFoundError:
                    pass  # renamed or removed meanwhile
    return found


def secret(ctl, view, client, top):
    """An allowed file is read and written; then the permission is over, then it is there again, under an open file."""
    path = view + "/.netrc"
    try:
        open(path, "rb").close()
        raise AssertionError("a private file was opened")
    except PermissionError:
        pass
    with open(view + "/open", "r+b") as f:
        assert f.read() == OPEN * 300
        f.seek(0)
        f.write(OPEN)
        f.flush()
        assert on_disk(top, OPEN), "the control: where an ordinary file is looked for it is found"
    ctl("allow /p/.netrc")
    ctl("run")
    with open(path, "r+b") as f:
        assert f.read() == WORD * 300
        f.seek(10)
        f.write(b"CHANGED " + WORD)
        f.flush()
        os.fsync(f.fileno())
        assert not on_disk(top, WORD), f"it lies in {on_disk(top, WORD)}"
    assert ctl("barrier").startswith("0")
    with open(client + "/.netrc", "rb") as f:
        assert f.read()[10:18] == b"CHANGED "
    assert not on_disk(top, WORD), f"it lies in {on_disk(top, WORD)}"


def becomes_secret(ctl, view, client, top):
    """A task made a private file, with a backing on the disk; then the person writes to it and allows it."""
    name = "/.pgpass"
    with open(view + name, "wb", buffering=0) as f:
        f.write(MADE)
        os.fsync(f.fileno())
        assert ctl("barrier").startswith("0")
        assert on_disk(top, MADE), "the control: it is on the disk"
        ctl("run")
        ctl("allow /p" + name)
        with open(client + name, "wb") as g:
            g.write(WORD * 10)
        ctl("run")
        with open(view + name, "rb") as g:
            assert g.read() == WORD * 10
        assert not on_disk(top, MADE), "what was there is still on the disk"
        f.seek(0)
        f.write(b"CHANGED " + WORD)  # the file that has been open since before
    assert ctl("barrier").startswith("0")
    with open(client + name, "rb") as g, open(view + name, "rb") as h:
        got = g.read()
        assert got == h.read() and got.startswith(b"CHANGED ") and got.endswith(WORD), got
    assert not on_disk(top, WORD), f"it lies in {on_disk(top, WORD)}"
    ctl("allow /p/.netrc")  # and no more
    ctl("run")
    try:
        open(view + name, "rb").close()
        raise AssertionError("a private file was opened")
    except PermissionError:
        pass
    assert not on_disk(top, WORD), f"it lies in {on_disk(top, WORD)}"


def ignored(ctl, view, client, top):
    with open(client + "/.virgaignore", "w") as f:
        f.write("out/\n*.o\n")
    ctl("run")
    ctl("notes")
    for name in ("a.o", "b.o", "c.txt"):
        with open(f"{view}/{name}", "w") as f:
            f.write(name)
    assert ctl("barrier").startswith("0")
    notes = ctl("notes")
    assert notes.count(".virgaignore") == 1 and "a.o" in notes, notes
    assert sorted(n for n in os.listdir(client) if n.endswith((".o", ".txt"))) == ["c.txt"]


def no_memory(ctl, view, client, top):
    with open(view + "/full", "wb", buffering=0) as f:
        f.write(b"first")
        ctl("fault proj-dirty")
        try:
            f.write(b"second")
            raise AssertionError("a write that cannot be kept track of was accepted")
        except OSError as e:
            assert e.errno == 12, e
        f.write(b"third")
    assert ctl("barrier").startswith("0")
    with open(client + "/full", "rb") as f, open(view + "/full", "rb") as g:
        got = f.read()
        assert got == g.read() == b"firstthird", got


def removed(ctl, view, client, top):
    """The node's files of what was removed are used again, empty; what many files need is made ahead."""
    for i in range(40):
        with open(f"{view}/gone{i}", "wb") as f:
            f.write(MADE)
    for i in range(40):
        os.unlink(f"{view}/gone{i}")
    assert ctl("barrier").startswith("0")
    for i in range(200):
        with open(f"{view}/new{i}", "wb") as f:
            os.pwrite(f.fileno(), b"end", len(MADE))
    assert ctl("barrier").startswith("0")
    for i in range(200):
        for at in (view, client):
            with open(f"{at}/new{i}", "rb") as f:
                assert f.read() == bytes(len(MADE)) + b"end", f"{at}/new{i}"
    assert not on_disk(top, MADE), on_disk(top, MADE)


def open_and_gone(ctl, view, client, _):
    """A file that is open keeps its content when its last name goes, also what was not asked for before."""
    for how in ("unlink", "replace"):
        content = os.urandom(20 << 20)
        with open(f"{client}/gone-{how}", "wb") as f:
            f.write(content)
        ctl("run")
        with open(f"{view}/gone-{how}", "rb") as f:
            assert f.read(1) == content[:1]
            if how == "unlink":
                os.unlink(f"{view}/gone-{how}")
            else:
                open(f"{view}/new", "wb").close()
                os.rename(f"{view}/new", f"{view}/gone-{how}")
            assert ctl("barrier").startswith("0")
            assert os.path.exists(f"{client}/gone-{how}") == (how == "replace")
            assert f.read() == content[1:], how


def work():
    ctl = Control(os.environ["CTL"])
    view, client = os.environ["VIEW"], os.environ["CLIENT"]
    top = os.path.dirname(view)
    for case in (secret, becomes_secret, ignored, no_memory, removed, open_and_gone):
        case(ctl, view, client, top)
    print("secrets stayed in memory; what is not kept was said; what was open was kept")
    return 0


def prepare(top):
    os.makedirs(top + "/client/p")
    for name, word in ((".netrc", WORD), ("open", OPEN)):
        with open(f"{top}/client/p/{name}", "wb") as f:
            f.write(word * 300)


if __name__ == "__main__":
    sys.exit(on_a_view(work, "kept", prepare))
