"""The compiled form of an environment (an EROFS image over the FUSE view) shows what the view shows, and
never anything old. Service and daemon are joined without a cloud by mirror-try."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest
from hosts import far_world
from virga import BIN, wait_for

TRY = BIN.parent / "tests" / "fs" / "mirror-try"
pytestmark = pytest.mark.skipif(not TRY.exists(), reason=f"there is no {TRY}: run make first")

LOOK = """
import hashlib, json, os, stat, sys
top = sys.argv[1]
seen = {}
for folder, folders, files in os.walk(top):
    for name in [""] + folders + files:
        path = os.path.join(folder, name) if name else folder
        st = os.lstat(path)
        what = [st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns]
        if not stat.S_ISDIR(st.st_mode):
            what += [st.st_size, st.st_nlink]
        if stat.S_ISLNK(st.st_mode):
            what.append(os.readlink(path))
        if stat.S_ISREG(st.st_mode):
            what.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
            what.append(sorted((k, os.getxattr(path, k).hex()) for k in os.listxattr(path) if "user." in k))
        seen[os.path.relpath(path, top)] = what
a, b = (os.stat(os.path.join(top, "links", name)) for name in "ab")
seen["linked"] = a.st_ino == b.st_ino
print(json.dumps(seen, sort_keys=True))
"""

STEP = """
import os, sys, time
top, signs = sys.argv[1:]
n = len(os.listdir(signs))
for name in sorted(os.listdir(top + "/steady")):
    open(top + "/steady/" + name).read()
print(n, open(top + "/moving/file").read(), len(os.listdir(top + "/moving")), flush=True)
open(f"{signs}/{n}", "w").close()
while not os.path.exists(f"{signs}.{n}"):
    time.sleep(0.005)
"""


@pytest.fixture
def tree():
    """A folder that is neither in a project nor on the list of what is the node's own."""
    top = tempfile.mkdtemp(prefix="vg-compiled-", dir="/var/cache")
    os.chmod(top, 0o755)
    yield top
    shutil.rmtree(top)


def put(path, data, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, mode)


def plant(top):
    for i in range(120):
        put(f"{top}/many/{i:03}-{'x' * (i % 70)}", b"%d" % i * i, 0o600 + i % 8)
    put(f"{top}/odd/\u00fcn\u00ef c\u00f6de\n", b"name")
    put(f"{top}/odd/-", b"")
    put(f"{top}/odd/suid", b"#!/bin/true", 0o4755)
    put(f"{top}/odd/large", os.urandom(700_000))
    put(f"{top}/odd/attr", b"with", 0o755)  # of an environment only executables may have them
    os.setxattr(f"{top}/odd/attr", "user.colour", b"green")
    put(f"{top}/links/a", b"two names")
    os.link(f"{top}/links/a", f"{top}/links/b")
    os.symlink("../many", f"{top}/links/to")
    os.symlink("t" * 3000, f"{top}/links/nowhere")
    os.makedirs(f"{top}/empty/very")
    os.mkfifo(f"{top}/odd/fifo")
    with open(f"{top}/odd/sparse", "wb") as f:
        f.truncate(2_000_000)
        f.seek(1_000_000)
        f.write(b"middle")
    os.utime(f"{top}/odd/-", ns=(1, 1234567890123456789))


def results(done):
    """What each run printed, and what the node said after it."""
    said = [json.loads(line) for line in done.stderr.decode().splitlines() if line.startswith("{")]
    assert all(s["exit"] == 0 for s in said), done.stderr.decode()
    return done.stdout.decode().splitlines(), said


def unable(said):
    if said[-1]["compiled"]["unable"]:
        pytest.skip("this kernel does not mount EROFS from files")


@pytest.mark.parametrize("more", [[], ["--no-passthrough"]])
def test_the_image_shows_what_the_machine_has(tree, more):
    plant(tree)
    native = subprocess.run([sys.executable, "-c", LOOK, tree], stdout=subprocess.PIPE, check=True)
    done = subprocess.run([TRY, "--compile", *more, "--runs", "4", "--", sys.executable, "-c", LOOK, tree],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    lines, said = results(done)
    unable(said)
    assert len(lines) == 4
    want = json.loads(native.stdout)
    for i, line in enumerate(lines):
        got = json.loads(line)
        assert {k: (want.get(k), got.get(k)) for k in {*want, *got} if want.get(k) != got.get(k)} == {}, f"run {i}"
    assert said[-1]["compiled"]["taken"] >= 2, said[-1]["compiled"]
    opened = said[-1]["opens"] - said[-2]["opens"]
    assert opened < 20, f"{opened} files were opened by way of FUSE in the last run"


def test_an_edit_before_a_run_is_seen_whatever_was_compiled(tree):
    runs = 10
    for i in range(40):
        put(f"{tree}/steady/{i}", b"steady %d" % i)
    put(f"{tree}/moving/file", b"version 0")
    with tempfile.TemporaryDirectory() as work:
        signs = f"{work}/signs"
        os.mkdir(signs)
        trying = subprocess.Popen([TRY, "--compile", "--runs", str(runs), "--", sys.executable, "-c", STEP, tree, signs],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out = []
        reader = threading.Thread(target=lambda: out.extend(trying.communicate()))
        reader.start()
        for n in range(runs):  # while run n lasts, what run n + 1 must see comes to be
            wait_for(f"run {n}", lambda n=n: os.path.exists(f"{signs}/{n}") or trying.poll() is not None)
            put(f"{tree}/moving/file", b"version %d" % (n + 1))
            if n % 2:
                put(f"{tree}/moving/new-{n}", b"")
            open(f"{signs}.{n}", "w").close()
        reader.join(60)
        assert trying.poll() == 0, out
    lines, said = results(subprocess.CompletedProcess([], 0, *out))
    unable(said)
    want = [f"{n} version {n} {1 + n // 2}" for n in range(runs)]
    assert lines == want
    compiled = said[-1]["compiled"]
    assert compiled["taken"] >= 3, f"the folder beside the moving one was not compiled: {compiled}"


# ---- with a cloud ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def far():
    if os.geteuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/fuse"):
        pytest.skip("hosts need root, ip and FUSE")
    network = far_world()
    yield network
    network.control.virga("down")
    network.close()


def compiled_of(node):
    """What the node's file daemon says of its images."""
    daemons = node.json("node", "cache")
    return [m["compiled"] for d in daemons for m in d.get("machines", [])][0]


def test_tasks_from_another_host_run_on_the_image_as_they_do_without(far):
    node, laptop = far.nodes[0], far.laptop
    plant(laptop.path("/opt/only-here/planted"))
    command = ["python3", "-c", LOOK, "/opt/only-here/planted"]
    want = json.loads(laptop.plain(*command).stdout)
    for run in range(6):
        done = laptop.vrun(*command)
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        assert {k: (want.get(k), got.get(k)) for k in {*want, *got} if want.get(k) != got.get(k)} == {}, f"run {run}"
        wait_for("an image", lambda: compiled_of(node)["images"] > 0 or compiled_of(node)["unable"])
    said = compiled_of(node)
    if said["unable"]:
        pytest.skip("this kernel does not mount EROFS from files")
    assert said["taken"] >= 2, said
    # A command without a trace runs on FUSE, so that what it uses is seen.
    taken = said["taken"]
    assert laptop.vrun("cat", "/opt/only-here/file").stdout == b"from the laptop\n"
    assert compiled_of(node)["taken"] == taken
