#!/usr/bin/env python3
"""What --sync promises: when close, a creation or a change of a name has returned, the person's machine has it.

    sync.py --try PROGRAM
"""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import Control, on_a_view  # noqa: E402

FILES = 200


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def at_once(view, client):
    """Nobody asks for a barrier here: each is looked for when the call has returned."""
    for i in range(FILES):
        data = os.urandom(i * 97)
        put(f"{view}/f{i}", data)
        assert get(f"{client}/f{i}") == data, i
    os.rename(f"{view}/f1", f"{view}/moved")
    assert not os.path.exists(f"{client}/f1") and os.path.exists(f"{client}/moved")
    os.unlink(f"{view}/f2")
    assert not os.path.exists(f"{client}/f2")
    os.mkdir(f"{view}/d")
    assert os.path.isdir(f"{client}/d")
    os.symlink("f3", f"{view}/l")
    assert os.readlink(f"{client}/l") == "f3"
    os.link(f"{view}/f3", f"{view}/d/second")
    assert os.stat(f"{client}/d/second").st_ino == os.stat(f"{client}/f3").st_ino
    os.chmod(f"{view}/f4", 0o600)
    assert os.stat(f"{client}/f4").st_mode & 0o777 == 0o600
    os.truncate(f"{view}/f5", 3)
    assert os.stat(f"{client}/f5").st_size == 3


def race(ctl, view, client, name, mine, theirs):
    """The link is down; the program here makes it and waits; somebody makes it there."""
    result = []

    def make():
        try:
            mine(f"{view}/{name}")
            result.append(None)
        except OSError as e:
            result.append(e)
    ctl("away")
    t = threading.Thread(target=make)
    t.start()
    t.join(0.3)
    assert t.is_alive(), "it did not wait"
    theirs(f"{client}/{name}")
    ctl("back")
    t.join(30)
    assert not t.is_alive(), "it was never told"
    return result[0]


def exclusive(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def races(ctl, view, client):
    nothing = lambda path: None  # noqa: E731
    assert race(ctl, view, client, "control", exclusive, nothing) is None
    assert os.path.exists(f"{client}/control")
    cases = [("lock", exclusive, lambda p: put(p, b"theirs")), ("lock-folder", os.mkdir, os.mkdir),
             ("lock-link", lambda p: os.symlink("me", p), lambda p: os.symlink("them", p))]
    for name, mine, theirs in cases:
        lost = race(ctl, view, client, name, mine, theirs)
        assert isinstance(lost, FileExistsError), f"{name}: {lost!r}"
        assert ctl("barrier").startswith("0"), name
        ctl("run")
        assert not [x for x in os.listdir(client) if "conflict" in x], name
        assert sorted(os.listdir(view)) == sorted(os.listdir(client)), name
    assert get(f"{view}/lock") == b"theirs" and os.readlink(f"{view}/lock-link") == "them"
    os.unlink(f"{view}/lock")
    exclusive(f"{view}/lock")  # as often as one likes
    assert get(f"{client}/lock") == b""
    assert ctl("notes") == "", "nothing was in conflict"


def work():
    ctl, view, client = Control(os.environ["CTL"]), os.environ["VIEW"], os.environ["CLIENT"]
    at_once(view, client)
    races(ctl, view, client)
    print(f"{FILES} files and every change of a name were there at once; who came second was told")
    return 0


if __name__ == "__main__":
    sys.exit(on_a_view(work, "sync", env={"PROJ_SYNC": "1"}))
