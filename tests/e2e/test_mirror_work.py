"""A day's work through vrun from another host, each step beside the same step typed without vrun: building, a virtual
environment, git, pytest, SQLite, editors and tools."""
import os
import shutil
import sqlite3
import subprocess
import zipfile

import pytest
from trees import differences, tree
from virga import LONG, Terminal

UNITS = 30
ROWS = 200 if LONG else 40


def same(laptop, *argv, cwd=None, env=None, sort=False):
    """The command through vrun and without: the same status and output."""
    kw = {"env": {**laptop.env, **(env or {})}}
    folder = cwd or laptop.inner
    order = (lambda b: sorted(b.splitlines())) if sort else (lambda b: b)
    plain = laptop.plain("env", "-C", folder, *argv, **kw)
    there = laptop.run(["env", "-C", folder, "vrun", *argv], **kw)
    for _ in range(3):
        if order(there.stdout) == order(plain.stdout):
            break
        before, plain = plain, laptop.plain("env", "-C", folder, *argv, **kw)
        if order(before.stdout) == order(plain.stdout):
            break
        there = laptop.run(["env", "-C", folder, "vrun", *argv], **kw)  # somebody changed this machine meanwhile: its users, say
    assert (there.returncode, order(there.stdout)) == (plain.returncode, order(plain.stdout)), \
        f"{argv}: {there.stderr.decode(errors='replace')} (plain: {plain.stderr.decode(errors='replace')})"
    return there


def test_what_only_the_laptop_has_is_found(far):
    laptop = far.laptop
    assert not os.path.exists("/opt/only-here/file"), "the node must not have it"
    same(laptop, "cat", "/opt/only-here/file")
    same(laptop, "laptop-tool", "one", "two")
    assert same(laptop, "sh", "-c", "command -v less || echo none").stdout == b"none\n"  # the node has it
    same(laptop, "pwd")
    same(laptop, "id", "-u")
    same(laptop, "sh", "-c", "echo $HOME; ls -a ~")


@pytest.mark.parametrize("argv", [
    ["find", "/etc/alternatives", "/etc/python3.11", "/usr/lib/git-core", "/usr/share/perl5", "-printf", "%p %y %m %T@ %u %g %l %n\\n"],
    ["ls", "-lRn", "--time-style=full-iso", "/usr/share/perl5"],
    ["stat", "-c", "%n %s %a %u %g %y %F %N %h", "/usr/bin/git", "/etc/passwd", "/bin", "/usr/bin/python3"],
    ["sh", "-c", "ldd /usr/bin/git | sed 's/(0x.*//' | sort | grep -v vdso"],
    ["perl", "-MData::Dumper", "-MPOSIX", "-e", "print Dumper([1, {a => 2}]), POSIX::floor(2.5)"],
    ["/usr/bin/python3", "-c", "import json, ssl, sqlite3, asyncio; print(json.dumps([1, 2]), ssl.OPENSSL_VERSION)"],
    ["sh", "-c", "tar --sort=name -C /usr/share/doc/bash -cf - . | sha256sum"],
    ["sh", "-c", "cat /usr/bin/gcc /usr/lib/x86_64-linux-gnu/libcrypto.so.3 | sha256sum"],
    ["dpkg", "-l", "bash"],
    ["sh", "-c", "dpkg-query -W | sha256sum"],
    ["node", "-e", "console.log(process.version, require('path').join('a', '..', 'b'), require('fs').readdirSync('/opt/only-here'))"],
    ["sh", "-c", "printf 'int main(){return 3;}' | g++ -x c++ -o /tmp/a.out - && /tmp/a.out; echo $?"],
    ["awk", "-F:", "{ n += $3 } END { print n, NR }", "/etc/passwd"],
    ["openssl", "version", "-a"],
    ["sh", "-c", "ssh-keygen -q -t ed25519 -N '' -f /tmp/k && ssh-keygen -l -f /tmp/k.pub | cut -d' ' -f1,4"],
    ["sh", "-c", "cd /usr/lib/git-core && ls -i | wc -l && ls | sha256sum"],
    ["sh", "-c", "grep -rl 'sub new' /usr/share/perl5 | sort | sha256sum"],
    ["sh", "-c", "md5sum $(ls -d /usr/bin/* | head -n 20) 2>&1 | sort | sha256sum"],
    ["sh", "-c", "man -w bash 2>/dev/null; locale -a | sort; date -d @0 +%Z; TZ=Europe/Berlin date -d @0 +%H"],
    ["bash", "-lc", "shopt | sort | sha256sum; type -t ls; echo ~ ~root"],
    ["sh", "-c", "dd if=/usr/lib/x86_64-linux-gnu/libcrypto.so.3 bs=7001 skip=100 count=50 status=none | sha256sum"],
    ["/usr/bin/python3", "-c", "import mmap, hashlib; f = open('/usr/bin/git', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1); print(hashlib.sha256(m).hexdigest())"],
    ["sh", "-c", "test -r /etc/passwd && ! test -e /etc/nothing && [ -d /usr/lib ] && [ -L /bin ] && echo as expected"],
    ["sh", "-c", "dpkg -V bash coreutils; echo $?"],
    ["sh", "-c", "find /usr/share/perl5 -type f -size +2k -printf '%s\\n' | awk '{ n += $1 } END { print n }'"],
    ["readlink", "-f", "/usr/bin/cc", "/bin/sh", "/etc/alternatives/awk"],
    ["cat", "/nonexistent/file"],
    ["sh", "-c", "getent passwd root nobody daemon"],
    ["sh", "-c", "test -w /usr/bin && test -x /usr/bin/git && ! test -e /opt/nothing && echo $?"],
], ids=lambda argv: os.path.basename(argv[0]) + "-" + str(len(" ".join(argv))))
def test_tools_say_the_same(far, argv):
    if not shutil.which(argv[0], path=far.laptop.env["PATH"]):
        pytest.skip(f"{argv[0]} is not installed")
    same(far.laptop, *argv, sort=argv[0] == "find")


def write_c_project(folder):
    """A program of 30 units with headers, a generated source and dependencies that make must follow."""
    (folder / "src").mkdir(parents=True)
    for i in range(UNITS):
        (folder / f"src/u{i}.h").write_text(f"#pragma once\nint u{i}(int x);\n")
        calls = f"u{i + 1}(x) + " if i + 1 < UNITS else ""
        include = f'#include "u{i + 1}.h"\n' if i + 1 < UNITS else ""
        (folder / f"src/u{i}.c").write_text(f'#include "u{i}.h"\n#include "made.h"\n{include}'
                                            f"int u{i}(int x) {{ return {calls}{i} * STEP; }}\n")
    (folder / "src/main.c").write_text('#include <stdio.h>\n#include "u0.h"\nint main(void) { printf("%d\\n", u0(1)); }\n')
    (folder / "step").write_text("3\n")
    (folder / "Makefile").write_text(
        "SRC := $(wildcard src/*.c)\nOBJ := $(SRC:src/%.c=obj/%.o)\nprog: $(OBJ)\n\tcc -o $@ $^\n"
        "obj/%.o: src/%.c src/made.h | obj\n\tcc -O1 -MMD -c -o $@ $<\nobj:\n\tmkdir -p obj\n"
        "src/made.h: step\n\techo \"#define STEP $$(cat step)\" > $@\n-include $(OBJ:.o=.d)\n")


def test_make_builds_and_knows_what_is_up_to_date(far):
    laptop = far.laptop
    write_c_project(laptop.work / "c")
    write_c_project(laptop.work / "c-plain")
    laptop.plain("make", "-C", "c-plain", "-j2", check=0)
    done = laptop.vrun("make", "-C", "c", "-j2", timeout=300)
    assert done.returncode == 0, done.stderr
    answer = laptop.plain("c-plain/prog").stdout
    assert laptop.plain("c/prog").stdout == laptop.vrun("c/prog").stdout == answer
    objects = {p.name: p.stat().st_size for p in (laptop.work / "c/obj").iterdir()}
    assert objects == {p.name: p.stat().st_size for p in (laptop.work / "c-plain/obj").iterdir()}
    # Both sides agree on what is up to date, whoever built it.
    assert b"up to date" in laptop.plain("make", "-C", "c", check=0).stdout
    assert b"up to date" in laptop.vrun("make", "-C", "c", check=0).stdout
    (laptop.work / "c/step").write_text("5\n")
    again = laptop.vrun("make", "-C", "c", check=0, timeout=300).stdout
    assert again.count(b"cc -O1") == UNITS + 1
    assert laptop.plain("c/prog").stdout == b"%d\n" % (sum(range(UNITS)) * 5)


def make_wheel(folder):
    """A wheel with a module and a command, made by hand: no network, no build tool."""
    path = folder / "greeter-1.0-py3-none-any.whl"
    info = "greeter-1.0.dist-info"
    files = {
        "greeter/__init__.py": "def main():\n    print('hello from', __file__)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeter:main\n",
    }
    with zipfile.ZipFile(path, "w") as z:
        for name, text in files.items():
            z.writestr(name, text)
        z.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


def test_a_virtual_environment_made_there_works_here(far):
    laptop = far.laptop
    folder = laptop.work / "py"
    folder.mkdir()
    wheel = make_wheel(folder)
    done = laptop.vrun("-C", f"{laptop.inner}/py", "sh", "-c",
                       f"/usr/bin/python3 -m venv env && env/bin/pip install -q --no-index ./{wheel.name}", timeout=300)
    assert done.returncode == 0, done.stderr
    expected = f"hello from {laptop.inner}/py/env/lib/python3.11/site-packages/greeter/__init__.py\n".encode()
    version = subprocess.run(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                             stdout=subprocess.PIPE, check=True).stdout.strip()
    expected = expected.replace(b"3.11", version)
    assert laptop.plain("py/env/bin/greet").stdout == expected
    assert laptop.vrun("py/env/bin/greet").stdout == expected
    assert laptop.vrun("py/env/bin/pip", "list", "--format=freeze").stdout == \
        laptop.plain("py/env/bin/pip", "list", "--format=freeze").stdout


GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@localhost", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@localhost"}


def test_git_agrees_on_both_sides(far):
    laptop = far.laptop
    folder = laptop.work / "repo"
    for i in range(200):
        (folder / f"d{i % 10}").mkdir(parents=True, exist_ok=True)
        (folder / f"d{i % 10}/f{i}").write_text(f"{i}\n" * i)
    env = {**laptop.env, **GIT}
    there = f"{laptop.inner}/repo"
    done = laptop.run(["vrun", "-C", there, "sh", "-c", "git init -q -b main && git add -A && git commit -qm one && git status --porcelain"],
                      env=env)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert laptop.plain("git", "-C", there, "status", "--porcelain").stdout == b""
    same(laptop, "git", "log", "--format=%H %T %s", cwd=there)
    same(laptop, "git", "fsck", "--strict", cwd=there)
    (folder / "d3/f3").write_text("changed\n")
    (folder / "new").write_text("new\n")
    assert same(laptop, "git", "status", "--porcelain", cwd=there).stdout == b" M d3/f3\n?? new\n"
    same(laptop, "git", "diff", cwd=there)
    done = laptop.run(["vrun", "-C", there, "sh", "-c", "git checkout -q -b other && git commit -qam two && git checkout -q main"], env=env)
    assert done.returncode == 0, done.stderr
    assert (folder / "d3/f3").read_text() == "3\n3\n3\n"
    same(laptop, "git", "branch", "-a", cwd=there)
    done = laptop.run(["vrun", "-C", there, "git", "merge", "-q", "other"], env=env)
    assert done.returncode == 0 and (folder / "d3/f3").read_text() == "changed\n", done.stderr
    laptop.plain("git", "-C", there, "gc", "-q", check=0)
    same(laptop, "git", "log", "--all", "--format=%H", cwd=there)


def test_git_status_reads_no_file_again(far):
    """Inode numbers and times are the laptop's own: git believes its index and writes no new one."""
    laptop = far.laptop
    folder = laptop.work / "believed"
    folder.mkdir()
    for i in range(300):
        (folder / f"f{i}").write_text(f"{i}\n")
    laptop.plain("sh", "-c", "cd believed && git init -q && git add -A && sleep 1.1 && git update-index --refresh", check=0)
    trace = {"GIT_TRACE_PERFORMANCE": "0", "GIT_OPTIONAL_LOCKS": "0"}
    index = (folder / ".git/index").read_bytes()
    done = laptop.run(["vrun", "-C", f"{laptop.inner}/believed", "strace", "-f", "-c", "-e", "trace=openat,newfstatat", "-o", "calls",
                       "git", "diff-files", "--quiet"] if shutil.which("strace") else
                      ["vrun", "-C", f"{laptop.inner}/believed", "git", "diff-files", "--quiet"], env={**laptop.env, **trace})
    assert done.returncode == 0, done.stderr
    assert (folder / ".git/index").read_bytes() == index
    if (folder / "calls").exists():
        opens = [line.split() for line in (folder / "calls").read_text().splitlines() if "openat" in line]
        assert opens and int(opens[0][3]) < 200, "git opened the files"


def test_pytest_passes_and_fails_alike(far):
    laptop = far.laptop
    folder = laptop.work / "tested"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/__init__.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "test_pkg.py").write_text(
        "import pkg, pytest\n@pytest.mark.parametrize('x', range(20))\ndef test_twice(x):\n    assert pkg.twice(x) == x + x\n"
        "def test_wrong(tmp_path):\n    (tmp_path / 'f').write_text('x')\n    assert pkg.twice(2) == 5\n")
    argv = ["/usr/bin/python3", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    env = {k: v for k, v in laptop.env.items() if not k.startswith("PYTHON")}
    plain = laptop.run(["env", "-C", f"{laptop.inner}/tested", *argv], env=env)
    shutil.rmtree(folder / "__pycache__")
    there = laptop.run(["env", "-C", f"{laptop.inner}/tested", "vrun", *argv], env=env)
    assert there.returncode == plain.returncode == 1, there.stderr
    assert b"20 passed" in there.stdout and b"1 failed" in there.stdout
    assert (folder / "__pycache__").is_dir()


WRITER = """
import sqlite3, sys
db = sqlite3.connect("rows.db", timeout=120, isolation_level=None)
for i in range(int(sys.argv[2])):
    db.execute("begin immediate")
    n = db.execute("select count(*) from t").fetchone()[0]
    db.execute("insert into t values (?, ?, ?)", (int(sys.argv[1]), i, n))
    db.execute("commit")
"""


@pytest.mark.parametrize("mode", ["delete", "truncate"])
@pytest.mark.parametrize("tasks", ["one", "four"])
def test_sqlite_with_four_writers(far, mode, tasks):
    laptop = far.laptop
    folder = laptop.work / f"db-{mode}-{tasks}"
    folder.mkdir()
    (folder / "writer.py").write_text(WRITER)
    db = sqlite3.connect(folder / "rows.db")
    db.execute(f"pragma journal_mode = {mode}")
    db.execute("create table t (writer, i, n)")
    db.commit()
    db.close()
    base = ["vrun", "-C", f"{laptop.inner}/{folder.name}"]
    if tasks == "one":
        done = laptop.run([*base, "sh", "-c", f"for w in 1 2 3 4; do /usr/bin/python3 writer.py $w {ROWS} & p=\"$p $!\"; done;"
                           " for q in $p; do wait $q || exit 9; done"], timeout=600)
        assert done.returncode == 0, done.stderr
    else:
        writers = [laptop.popen([*base, "/usr/bin/python3", "writer.py", str(w), str(ROWS)]) for w in range(1, 5)]
        for w in writers:
            _, err = w.communicate(timeout=600)
            assert w.returncode == 0, err
    db = sqlite3.connect(folder / "rows.db")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    rows = db.execute("select writer, i, n from t order by n").fetchall()
    db.close()
    assert len(rows) == 4 * ROWS
    assert [n for _, _, n in rows] == list(range(4 * ROWS)), "two writers saw the same state"
    assert not (folder / "rows.db-journal").exists()


def test_a_project_is_copied_packed_and_moved(far):
    laptop = far.laptop
    source = laptop.work / "c-copy"
    write_c_project(source)
    os.symlink("src/main.c", source / "link")
    os.setxattr(source / "step", "user.kept", b"yes")
    script = ("cp -a c-copy c-copied && tar -cf packed.tar c-copy && mkdir out && tar -C out -xf packed.tar && mv out/c-copy moved"
              " && rmdir out && rm packed.tar && diff -r c-copy moved && find moved -type f | wc -l")
    done = laptop.vrun("sh", "-c", script, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len([p for p in source.rglob("*") if p.is_file() and not p.is_symlink()])
    assert differences(tree(source), tree(laptop.work / "c-copied")) == []
    assert not (laptop.work / "out").exists()


def test_an_editor_in_a_terminal_writes_the_file(far):
    laptop = far.laptop
    vi = next((v for v in ("vim.tiny", "vim", "vi") if shutil.which(v)), None)
    if not vi:
        pytest.skip("no vi is installed (tools/bootstrap test)")
    (laptop.work / "notes.txt").write_text("one\ntwo\n")
    with Terminal(laptop.inside(["vrun", vi, "-u", "NONE", "notes.txt"]), laptop.env, "/") as t:
        t.expect("two")
        t.send("ggOtyped\x1b:wq\r")
        assert t.wait() == 0
    assert (laptop.work / "notes.txt").read_text() == "typed\none\ntwo\n"


def test_what_is_written_outside_the_project_is_dropped(far):
    laptop = far.laptop
    done = laptop.vrun("sh", "-c", "echo x > /opt/only-here/new && rm /etc/hostname /opt/only-here/file && echo y >> /usr/local/bin/laptop-tool"
                       " && ls /opt/only-here && tail -n1 /usr/local/bin/laptop-tool")
    assert (done.returncode, done.stdout) == (0, b"new\ny\n"), done.stderr
    assert laptop.plain("sh", "-c", "ls /opt/only-here; tail -n1 /usr/local/bin/laptop-tool").stdout.startswith(b"file\necho")
    assert laptop.vrun("ls", "/opt/only-here").stdout == b"file\n"
    assert not os.path.exists("/opt/only-here")


def test_a_folder_made_writable_is_written_back(far):
    laptop = far.laptop
    other = laptop.path("/home/dev/results")
    other.mkdir()
    done = laptop.vrun("--writable", "/home/dev/results", "sh", "-c", "echo 42 > /home/dev/results/answer; echo dropped > /home/dev/not")
    assert done.returncode == 0, done.stderr
    assert (other / "answer").read_text() == "42\n"
    assert not laptop.path("/home/dev/not").exists()
