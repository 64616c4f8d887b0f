#!/usr/bin/env python3
"""Both sides change a project: whose version is kept where, and what is said about it.

    conflict.py --try PROGRAM

Every case begins with the same file on both sides, cuts the link, lets the person's machine and the node do something, joins them again
and looks at both folders. The first case is the control: where one side alone changes something there is no second version.
"""
import glob
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import Control, on_a_view, tree  # noqa: E402


def put(path, text, mode="w"):
    with open(path, mode) as f:
        f.write(text)


def get(path):
    with open(path) as f:
        return f.read()


class Case:
    def __init__(self, ctl, name):
        self.ctl, self.name = ctl, name
        self.v, self.c = os.path.join(os.environ["VIEW"], name), os.path.join(os.environ["CLIENT"], name)
        os.mkdir(self.c)
        put(self.c + "/f", "old\n")
        ctl("run")
        assert get(self.v + "/f") == "old\n"
        ctl("notes")

    def apart(self, client, node):
        self.ctl("away")
        client(self.c)
        node(self.v)
        self.ctl("back")
        said = self.ctl("barrier")
        assert said.startswith("0"), f"{self.name}: barrier: {said}"
        self.ctl("run")
        seen, there = tree(self.v), tree(self.c)
        assert {k: v for k, v in seen.items() if k != "."} == {k: v for k, v in there.items() if k != "."}, \
            f"{self.name}: the view {seen} is not the client's {there}"
        return self.ctl("notes")

    def both(self, client, node, yours, ours, name="f"):
        notes = self.apart(client, node)
        copies = glob.glob(f"{self.c}/{name}.conflict-*")
        assert len(copies) == 1, f"{self.name}: copies {copies}, notes {notes}"
        got = get(f"{self.c}/{name}") if os.path.exists(f"{self.c}/{name}") else None
        assert got == yours, f"{self.name}: yours is {got!r}"
        assert get(copies[0]) == ours, f"{self.name}: the task's is {get(copies[0])!r}"
        assert "changed on your machine" in notes and os.path.basename(copies[0]) in notes, f"{self.name}: notes {notes!r}"


def replace(folder, text):
    put(folder + "/tmp", text)
    os.rename(folder + "/tmp", folder + "/f")


def names(case):
    """Hard links and open files that lose names at the client, in the one folder or in the other."""
    nothing = lambda folder: None  # noqa: E731
    for d in "ab":
        os.mkdir(f"{case.c}/{d}")
    for i in range(4):
        put(f"{case.c}/a/{i}", "x")
        os.link(f"{case.c}/a/{i}", f"{case.c}/b/{i}")
    case.ctl("run")
    assert [os.stat(f"{case.v}/{d}/{i}").st_nlink for d in "ab" for i in range(4)] == [2] * 8
    with open(f"{case.v}/a/0") as first, open(f"{case.v}/a/3") as last:
        def lose(c):
            os.unlink(c + "/a/0")
            os.unlink(c + "/b/1")
            replace_at(c + "/a/2")
            os.unlink(c + "/b/3")
            replace_at(c + "/a/3")
        case.apart(lose, nothing)
        assert os.fstat(first.fileno()).st_nlink == 1
        assert os.fstat(last.fileno()).st_nlink == 0, "its last name is another file's"
    assert [os.stat(f"{case.v}/{x}").st_nlink for x in ("b/0", "a/1", "a/2", "b/2", "a/3")] == [1] * 5


def replace_at(path):
    put(path + ".tmp", "another")
    os.rename(path + ".tmp", path)


def work():
    ctl = Control(os.environ["CTL"])
    nothing = lambda folder: None  # noqa: E731
    one = Case(ctl, "control")
    assert one.apart(lambda c: put(c + "/f", "edited\n"), nothing) == ""
    assert get(one.v + "/f") == "edited\n"
    assert one.apart(nothing, lambda v: put(v + "/f", "task's\n")) == ""
    assert get(one.c + "/f") == "task's\n" and not glob.glob(one.c + "/*conflict*")

    edit = lambda c: put(c + "/f", "yours\n")  # noqa: E731
    Case(ctl, "rewrite").both(edit, lambda v: put(v + "/f", "task's\n"), "yours\n", "task's\n")
    Case(ctl, "append").both(edit, lambda v: put(v + "/f", "more\n", "a"), "yours\n", "old\nmore\n")
    Case(ctl, "replace").both(edit, lambda v: replace(v, "saved\n"), "yours\n", "saved\n")
    Case(ctl, "both-replace").both(lambda c: replace(c, "yours\n"), lambda v: replace(v, "saved\n"), "yours\n", "saved\n")
    Case(ctl, "create").both(lambda c: put(c + "/new", "yours\n"), lambda v: put(v + "/new", "task's\n"), "yours\n", "task's\n", "new")
    Case(ctl, "deleted-here").both(lambda c: os.unlink(c + "/f"), lambda v: put(v + "/f", "more\n", "a"), None, "old\nmore\n")

    kept = Case(ctl, "removed-there")
    notes = kept.apart(edit, lambda v: os.unlink(v + "/f"))
    assert get(kept.c + "/f") == "yours\n" and "is kept" in notes, notes

    merged = Case(ctl, "folders")

    def folder(text):
        def make(at):
            os.mkdir(at + "/d")
            put(at + "/d/" + text, text)
        return make
    merged.apart(folder("one"), folder("two"))
    assert sorted(os.listdir(merged.c + "/d")) == ["one", "two"] == sorted(os.listdir(merged.v + "/d"))
    names(Case(ctl, "names"))
    print("9 cases: both versions were kept, and said so; what lost a name there has one less here")
    return 0


if __name__ == "__main__":
    sys.exit(on_a_view(work, "conflict"))
