"""What a task with a share of a GPU finds where the driver's libraries are, in each kind of root: Virga's own, whichever
name they are found by; the node's beside the page, and none of it to be written.

The driver is two small libraries in a folder that `node.libraries` names, the card a simulated one."""
import hashlib
import json
import os
import shutil
import subprocess

import oci
import pytest
from hosts import FAR_CONFIG, FarNode, far_world
from virga import BIN, Cloud, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="agents need root")

DRIVERS = f"/opt/vg-drivers-{os.getpid()}"  # not below a folder that sandboxes have of their own
CONFIG = f"""
pools:
  - name: default
    network: none
  - name: shared
    class: shared
    network: none
node: {{libraries: [{DRIVERS}/lib*.so*]}}
"""
SHARED = ("-P", "shared", "--gpus", "0.3")
NAMES = {"cuda": "libcuda.so", "nvml": "libnvidia-ml.so"}
OURS = {kind: BIN.parent / "lib" / "virga" / "vgpu" / f"{name}.1" for kind, name in NAMES.items()}
SHARE = "/run/virga/vgpu"

# Tells, as JSON, what a program gets by each name: files by what is in them, libraries as the loader maps them.
LOOK = """
import ctypes, hashlib, json, os, sys
def sum_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()
def writes(path, how):
    try:
        how(path)
        return "written"
    except OSError as e:
        return e.strerror
def loaded(name):
    ctypes.CDLL(name)
    want = os.path.basename(name).split(".so")[0]
    return sorted({sum_of(l.split()[-1]) for l in open("/proc/self/maps") if want in l})
seen = {"files": {p: sum_of(p) for p in sys.argv[1].split(",")}}
seen["loaded"] = {n: loaded(n) for n in sys.argv[2].split(",")}
page = "SHARE/page"
seen["page"] = len(open(page, "rb").read())
for name in ("page", "real/libcuda.so.1", "real/libnvidia-ml.so.1", "new"):
    seen["append " + name] = writes("SHARE/" + name, lambda p: open(p, "ab").close())
    seen["chmod " + name] = writes("SHARE/" + name, lambda p: os.chmod(p, 0o666))
    seen["unlink " + name] = writes("SHARE/" + name, os.unlink)
seen["append over"] = writes(sys.argv[1].split(",")[0], lambda p: open(p, "ab").close())
print(json.dumps(seen))
""".replace("SHARE", SHARE)


def sum_of(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


@pytest.fixture(scope="module")
def drivers():
    os.mkdir(DRIVERS, 0o755)
    for kind, name in NAMES.items():
        real = f"{DRIVERS}/{name}.580.1"
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}.1", "-x", "c", "-o", real, "-"],
                       input=f"int {kind}_of_the_node(void) {{ return 42; }}\n".encode(), check=True)
        os.symlink(f"{name}.580.1", f"{DRIVERS}/{name}.1")
    shutil.copy2(f"{DRIVERS}/{NAMES['cuda']}.580.1", f"{DRIVERS}/{NAMES['cuda']}")  # not every name is a link
    os.symlink(f"{NAMES['nvml']}.1", f"{DRIVERS}/{NAMES['nvml']}")
    yield DRIVERS
    shutil.rmtree(DRIVERS)


@pytest.fixture(scope="module")
def cloud(drivers):
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:1")
    know_card(cloud)
    yield cloud
    cloud.remove()


def know_card(cloud):
    """Before its memory is known a card is not divided."""
    wait_for("the card to be known", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 << 30])


def look(run, folder, *options):
    """What LOOK says of every name of both libraries in a folder."""
    files = [f"{folder}/{name}{end}" for name in NAMES.values() for end in ("", ".1", ".580.1")]
    real = [f"{SHARE}/real/{name}.1" for name in NAMES.values()]
    done = run(*options, "python3", "-c", LOOK, ",".join(files + real), "libcuda.so.1,libnvidia-ml.so.1," + files[0])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), files, real


def shows_the_share(seen, files, real):
    for kind, name in NAMES.items():
        mine = [f for f in files if f"/{name}" in f]
        assert {seen["files"][f] for f in mine} == {sum_of(OURS[kind])}, f"{name} by every name is ours"
        assert [seen["files"][f] for f in real if name in f] == [sum_of(f"{DRIVERS}/{name}.580.1")]
        assert seen["loaded"][f"{name}.1"] == [sum_of(OURS[kind])], "the loader finds ours"
    assert seen["loaded"][files[0]] == [sum_of(OURS["cuda"])]
    assert seen["page"] > 1000
    writes = {what: said for what, said in seen.items() if what.split()[0] in ("append", "chmod", "unlink")}
    assert len(writes) == 13
    for what, said in writes.items():
        assert said in ("Read-only file system", "No such file or directory", "Device or resource busy",
                        "Operation not permitted", "Permission denied"), (what, said)


def test_in_the_nodes_own_root(cloud, drivers):
    seen, files, real = look(cloud.vrun, drivers, *SHARED, "env", f"LD_LIBRARY_PATH={drivers}")
    shows_the_share(seen, files, real)
    # Control: the same without a share.
    done = cloud.vrun("sha256sum", f"{drivers}/libcuda.so.1")
    assert done.stdout.split()[0].decode() == sum_of(f"{drivers}/libcuda.so.580.1") != sum_of(OURS["cuda"])
    assert cloud.vrun("ls", "-A", SHARE).stdout == b"", "another task's folder is empty"


# Prints files, one after the other; of a name that begins with '+' why it cannot be written.
TOOL = r"""
#include <errno.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char b[4096];
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i] + (*argv[i] == '+'), *argv[i] == '+' ? "a" : "r");
        if (!f) printf("%s", strerror(errno));
        for (size_t n; f && *argv[i] != '+' && (n = fread(b, 1, sizeof b, f)) > 0;) fwrite(b, 1, n, stdout);
        if (f) fclose(f);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def image(cloud, tmp_path_factory):
    """An environment with a loader's folder, a driver of its own in it, and a program that needs neither."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "tool.c").write_text(TOOL)
    subprocess.run(["cc", "-static", "-O", "-o", folder / "tool", folder / "tool.c"], check=True)
    libs = f"usr/lib/{os.uname().machine}-linux-gnu"
    rootfs = {"bin": None, "bin/tool": ((folder / "tool").read_bytes(), 0o755), "usr": None, "usr/lib": None, libs: None,
              f"{libs}/libcuda.so.1": b"of the image", "tmp": None, "root": None}
    oci.Image([oci.layer(rootfs)], {}).write_layout(str(folder / "layout"))
    cloud.virga("env", "import", str(folder / "layout"), "-n", "image", check=0)
    return f"/{libs}"


def test_in_an_image(cloud, image):
    def shown(path, *options):
        done = cloud.vrun(*options, "--env", "image", "-C", "/", "/bin/tool", path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for kind, name in NAMES.items():
        for end in ("", ".1", ".580.1"):
            assert hashlib.sha256(shown(f"{image}/{name}{end}", *SHARED)).hexdigest() == sum_of(OURS[kind]), name + end
        assert hashlib.sha256(shown(f"{SHARE}/real/{name}.1", *SHARED)).hexdigest() == sum_of(f"{DRIVERS}/{name}.580.1")
    assert len(shown(f"{SHARE}/page", *SHARED)) > 1000
    for path in (f"{SHARE}/page", f"{SHARE}/real/libcuda.so.1", f"{image}/libcuda.so.1"):
        assert shown(f"+{path}", *SHARED) in (b"Read-only file system", b"Permission denied")
    assert shown(f"{image}/libcuda.so.1") == open(f"{DRIVERS}/libcuda.so.1", "rb").read(), "control: no share"


class NodeWithCard(FarNode):
    shared = ["--gpus", "fake:1"]


@pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter") or not os.path.exists("/dev/fuse"),
                    reason="ip, nsenter (tools/bootstrap test) and FUSE are needed")
def test_in_a_root_that_came_from_another_machine(drivers):
    network = far_world(config=FAR_CONFIG + CONFIG, kind=NodeWithCard)
    try:
        know_card(network.control)
        seen, files, real = look(network.laptop.vrun, f"/usr/lib/{os.uname().machine}-linux-gnu", *SHARED)
        shows_the_share(seen, files, real)
        seen, files, real = look(network.laptop.vrun, "/run/virga-node/0", *SHARED)
        shows_the_share(seen, files, real)
    finally:
        network.control.virga("down")
        network.close()


def refused(cloud, *options):
    done = cloud.vrun(*SHARED, *options, "touch", "began")
    assert done.returncode == 125 and not (cloud.work / "began").exists(), done.stderr
    return done.stderr.decode()


def test_a_session_has_no_share(cloud):
    assert "a task in a session cannot have a share of a GPU" in refused(cloud, "--session", "s")


def test_a_share_that_cannot_be_shown_does_not_start(drivers):
    cloud = Cloud(CONFIG.replace("/lib*.so*", "/libcuda.so*"))
    try:
        cloud.up("--gpus", "fake:1")
        know_card(cloud)
        assert "no libnvidia-ml of its driver: name its folder in node.libraries" in refused(cloud)
        assert cloud.vrun("true").returncode == 0, "control"
    finally:
        cloud.remove()
