"""Environments in the cloud's store: images in and out, names, versions, teams, quotas; the store's process dies."""
import base64
import json
import os
import signal
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

import oci
from virga import Cloud, children_of, read_bytes, wait_for

BASE = {"bin": None, "bin/tool": (b"#!/bin/sh\necho tool\n", 0o755), "etc": None, "etc/one": b"1\n", "etc/two": b"2\n",
        "lib": "-> usr/lib", "usr": None, "usr/lib": None, "usr/lib/a": b"A" * 600000, "var": None,
        "var/old": None, "var/old/x": b"x", "var/keep": b"k", "bin/tool2": "= bin/tool", "gone": b"g"}
CHANGE = {"etc/.wh.two": b"", "etc/three": b"3\n", "var/old/.wh..wh..opq": b"", "var/old/new": b"n", ".wh.gone": b"",
          "lib/b": b"through a link", "x" * 150 + "/" + "y" * 150: b"a long name"}


@pytest.fixture(scope="module")
def cloud():
    c = Cloud(config="limits: {env_bytes: 64M}\n")
    c.up()
    yield c
    c.down()
    c.remove()


def image(packing="gzip", several=False, name="made:here"):
    return oci.Image([oci.layer(BASE, packing), oci.layer(CHANGE, packing)],
                     {"Env": ["A=b"], "WorkingDir": "/var", "Cmd": ["tool"]}, name, several)


def exported(cloud, ref, tmp_path):
    """What an exported archive's layer holds: {path: (type, mode, data or target)}."""
    path = str(tmp_path / "out.tar")
    cloud.virga("env", "export", ref, "--oci", path, check=0)
    with tarfile.open(path) as tar:
        index = json.load(tar.extractfile("index.json"))
        part = lambda d: tar.extractfile("blobs/sha256/" + d[7:]).read()  # noqa: E731
        manifest = json.loads(part(index["manifests"][0]["digest"]))
        for d in [index["manifests"][0], manifest["config"], *manifest["layers"]]:
            assert oci.digest(part(d["digest"])) == d["digest"]
            assert len(part(d["digest"])) == d["size"]
        config = json.loads(part(manifest["config"]["digest"]))
        with open(tmp_path / "layer.tar", "wb") as f:
            f.write(part(manifest["layers"][0]["digest"]))
    found = {}
    with tarfile.open(tmp_path / "layer.tar") as tar:
        for m in tar:
            data = tar.extractfile(m).read() if m.isfile() else m.linkname
            found[m.name] = (m.type, m.mode, data)
    return found, config


def check_flat(found, config):
    assert "etc/two" not in found and "gone" not in found and "var/old/x" not in found
    assert found["etc/one"][2] == b"1\n" and found["etc/three"][2] == b"3\n"
    assert found["var/old/new"][2] == b"n" and found["var/keep"][2] == b"k"
    assert found["bin/tool"][1] == 0o755 and found["bin/tool2"][2] == found["bin/tool"][2]
    assert found["lib"] == (tarfile.SYMTYPE, found["lib"][1], "usr/lib")
    assert found["usr/lib/b"][2] == b"through a link" and found["usr/lib/a"][2] == b"A" * 600000
    assert found["x" * 150 + "/" + "y" * 150][2] == b"a long name"
    assert not [name for name in found if ".wh." in name]
    assert config["config"] == {"Env": ["A=b"], "WorkingDir": "/var", "Cmd": ["tool"]}


@pytest.mark.parametrize("packing", ["gzip", "zstd", "plain"])
def test_a_layout_is_flattened_whatever_its_layers_are_packed_with(cloud, tmp_path, packing):
    image(packing).write_layout(str(tmp_path / "layout"))
    r = cloud.virga("env", "import", str(tmp_path / "layout"), "--name", packing, check=0)
    assert r.stdout == f"{packing}@1\n".encode()
    check_flat(*exported(cloud, packing, tmp_path))


def test_an_archive_with_an_index_for_several_platforms(cloud, tmp_path):
    image(several=True).write_archive(str(tmp_path / "image.tar"), str(tmp_path / "t"))
    r = cloud.virga("env", "import", str(tmp_path / "image.tar"), check=0)
    assert r.stdout == b"made:here@1\n", "the image's own name"
    check_flat(*exported(cloud, "made:here@1", tmp_path))
    # what was exported comes back as the same tree
    cloud.virga("env", "import", str(tmp_path / "out.tar"), "--name", "back", check=0)
    assert cloud.virga("env", "diff", "made:here", "back").returncode == 0
    r = cloud.virga("env", "import", str(tmp_path / "image.tar"), "--platform", "linux/riscv")
    assert r.returncode == 125 and b"has nothing for linux/riscv" in r.stderr


def test_a_registry_with_tokens_and_redirections(cloud, tmp_path):
    registry = oci.Registry({"lab/tools": image(several=True)})
    try:
        ref = f"{registry.host}/lab/tools:v1"
        r = cloud.virga("env", "import", ref, check=0)
        assert r.stdout.decode() == f"{ref}@1\n"
        check_flat(*exported(cloud, ref, tmp_path))
        assert not registry.faults, registry.faults
        assert [kind for kind, _ in registry.seen].count("blobs") >= 3
        r = cloud.virga("env", "import", f"{registry.host}/lab/tools:nope")
        assert r.returncode == 125 and b"has no nope of lab/tools" in r.stderr
    finally:
        registry.close()


def test_a_registry_that_wants_a_login(cloud, tmp_path):
    registry = oci.Registry({"secret": image()}, login="ann:pass:word")
    try:
        ref = f"{registry.host}/secret:v1"
        r = cloud.virga("env", "import", ref)
        assert r.returncode == 125 and b"gives no token" in r.stderr
        config = {"auths": {registry.host: {"auth": base64.b64encode(b"ann:pass:word").decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        cloud.run(["virga", "env", "import", ref], env={**cloud.env, "DOCKER_CONFIG": str(tmp_path)}, check=0)
        assert not registry.faults, registry.faults
    finally:
        registry.close()


def test_a_registry_is_asked_over_tls_and_must_be_the_one_it_says(cloud, tmp_path):
    authority, other = oci.Authority(tmp_path / "a"), oci.Authority(tmp_path / "b", "elsewhere.example")
    registry = oci.Registry({"lab/tools": image(), "secret": image()}, login="ann:pass:word", basic=True, authority=authority)
    wrong = oci.Registry({"lab/tools": image()}, authority=other)
    try:
        config = {"auths": {f"https://{registry.host}": {"auth": base64.b64encode(b"ann:pass:word").decode()}}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        env = {**cloud.env, "DOCKER_CONFIG": str(tmp_path)}
        ref = f"{registry.host}/lab/tools:v1"
        r = cloud.run(["virga", "env", "import", "--ca", authority.ca, ref], env=env, check=0)
        assert r.stdout.decode() == f"{ref}@1\n" and not registry.faults
        check_flat(*exported(cloud, ref, tmp_path))
        # as Docker keeps it, for vrun --image and for import
        certs = tmp_path / "home/.config/docker/certs.d" / registry.host
        certs.mkdir(parents=True)
        shutil.copy(authority.ca, certs / "ca.crt")
        env["HOME"] = str(tmp_path / "home")
        cloud.run(["virga", "env", "import", f"{registry.host}/secret:v1"], env=env, check=0)
        # without a login; with an authority that did not sign; with a certificate of another host; with no certificate
        r = cloud.virga("env", "import", "--ca", authority.ca, ref)
        assert r.returncode == 125 and b"wants a login" in r.stderr
        seen = len(registry.seen)
        r = cloud.virga("env", "import", "--ca", other.ca, ref)
        assert r.returncode == 125 and b"is not trusted" in r.stderr, r.stderr
        assert len(registry.seen) == seen, "nothing was asked of who is not trusted"
        r = cloud.virga("env", "import", "--ca", other.ca, f"{wrong.host}/lab/tools:v1")
        assert r.returncode == 125 and b"is not trusted" in r.stderr and b"mismatch" in r.stderr, r.stderr
        r = cloud.virga("env", "import", "--ca", str(tmp_path / "config.json"), ref)
        assert r.returncode == 125 and b"there are no certificates in" in r.stderr
        assert not wrong.seen
    finally:
        registry.close()
        wrong.close()


def test_what_is_damaged_is_refused(cloud, tmp_path):
    img = image()
    img.write_layout(str(tmp_path / "layout"))
    for name, data in img.blobs.items():
        path = tmp_path / "layout/blobs/sha256" / name[7:]
        for bad in (data[:-3], bytes([data[0] ^ 1]) + data[1:], data + b"more"):
            path.write_bytes(bad)
            r = cloud.virga("env", "import", str(tmp_path / "layout"), "--name", "damaged")
            assert r.returncode == 125, (name, r.stdout)
        path.write_bytes(data)
    assert "damaged" not in [e["name"] for e in cloud.json("env", "list")]
    evil = oci.Image([oci.layer({"a/../../etc/passwd": b"x"})])
    evil.write_layout(str(tmp_path / "evil"))
    r = cloud.virga("env", "import", str(tmp_path / "evil"), "--name", "damaged")
    assert r.returncode == 125 and b"a/../../etc/passwd" in r.stderr
    r = cloud.virga("env", "import", "/etc/passwd")
    assert r.returncode == 125 and b"no tar archive" in r.stderr


def test_names_and_versions(cloud, tmp_path):
    image().write_layout(str(tmp_path / "one"))
    oci.Image([oci.layer({**BASE, "etc/one": b"other\n", "new": b""})]).write_layout(str(tmp_path / "two"))
    for n, path in enumerate(("one", "two"), 1):
        r = cloud.virga("env", "import", str(tmp_path / path), "-n", "versions", check=0)
        assert r.stdout == f"versions@{n}\n".encode()
    listed = {(e["name"], e["version"]): e for e in cloud.json("env", "list")}
    assert listed["versions", 1]["root"] != listed["versions", 2]["root"]
    assert cloud.json("env", "show", "versions")["version"] == 2
    assert cloud.json("env", "show", "versions@1")["config"]["config"]["WorkingDir"] == "/var"
    diff = cloud.virga("env", "diff", "versions@1", "versions@2")
    lines = diff.stdout.decode().splitlines()
    assert diff.returncode == 1 and "M /etc/one" in lines and "+ /new" in lines and "+ /etc/two" in lines
    assert "- /etc/three" in lines and not [x for x in lines if "tool" in x]
    cloud.virga("env", "rm", "versions@2", check=0)
    assert cloud.json("env", "show", "versions")["version"] == 1
    cloud.virga("env", "rm", "versions", check=0)
    r = cloud.virga("env", "show", "versions")
    assert r.returncode == 125 and b"there is no environment 'versions'" in r.stderr
    assert cloud.virga("env", "rm", "../../etc").returncode == 125


def stored_bytes(cloud):
    total = 0
    for root, _, files in os.walk(f"{cloud.home}/control/env/u"):
        for f in files if "/dat/" in root else []:
            try:
                total += os.path.getsize(f"{root}/{f}")
            except FileNotFoundError:  # the collection was faster
                pass
    return total


def test_removing_gives_the_space_back_and_the_quota_holds(cloud, tmp_path):
    before = stored_bytes(cloud)
    oci.Image([oci.layer({"big": os.urandom(20 << 20)})]).write_layout(str(tmp_path / "big"))
    oci.Image([oci.layer({"huge": os.urandom(60 << 20)}, "plain")]).write_layout(str(tmp_path / "huge"))
    cloud.virga("env", "import", str(tmp_path / "big"), "-n", "big", check=0)
    assert stored_bytes(cloud) >= before + (20 << 20)
    r = cloud.virga("env", "import", str(tmp_path / "huge"), "-n", "huge")
    assert r.returncode == 125 and b"you may keep 64 MiB of environments and have" in r.stderr, r.stderr
    assert b"'virga env rm' makes room" in r.stderr
    wait_for("what had come to go", lambda: stored_bytes(cloud) < before + (21 << 20))
    cloud.virga("env", "rm", "big", check=0)
    wait_for("the collection", lambda: stored_bytes(cloud) <= before)
    cloud.virga("env", "import", str(tmp_path / "huge"), "-n", "huge", check=0)
    cloud.virga("env", "rm", "huge", check=0)


def envd(cloud):
    found = [p for p in children_of(cloud.pid("virgad")) if b"envd" in read_bytes(f"/proc/{p}/cmdline")]
    return found[0] if found else None


def test_the_store_dies_and_comes_back(cloud, tmp_path):
    image().write_layout(str(tmp_path / "l"))
    cloud.virga("env", "import", str(tmp_path / "l"), "-n", "survivor", check=0)
    old = envd(cloud)
    os.kill(old, signal.SIGKILL)
    wait_for("another store", lambda: envd(cloud) not in (None, old))
    check_flat(*exported(cloud, "survivor", tmp_path))


def test_virgad_starts_again_and_still_has_them(cloud, tmp_path):
    image().write_layout(str(tmp_path / "l"))
    cloud.virga("env", "import", str(tmp_path / "l"), "-n", "kept", check=0)
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("another virgad", lambda: cloud.pid("virgad") not in (None, old))
    wait_for("its answers", lambda: cloud.virga("status").returncode == 0)
    check_flat(*exported(cloud, "kept", tmp_path))


def test_saving_folders_of_this_machine(cloud, tmp_path, request):
    place = tempfile.mkdtemp(prefix="vg-save-", dir="/srv")  # the node's own /tmp and /var/tmp are never served
    request.addfinalizer(lambda: shutil.rmtree(place))
    top = Path(place) / "machine"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "sub" / "deep" / "big").write_bytes(os.urandom(700000))
    (top / "sub" / "run").write_bytes(b"#!/bin/sh\n")
    (top / "sub" / "run").chmod(0o751)
    (top / "sub" / "link").symlink_to("deep/big")
    (top / "sub" / "empty").touch()
    os.setxattr(top / "sub" / "run", "user.note", b"kept")
    (top / "beside").write_text("not wanted")
    home = Path(place) / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (home / "notes").write_text("notes\n")
    env = {**cloud.env, "HOME": str(home)}
    r = cloud.run(["virga", "env", "save", "mine", str(top / "sub"), str(home)], env=env, check=0)
    assert r.stdout == b"mine@1\n" and b"left out" in r.stderr
    found, _ = exported(cloud, "mine", tmp_path)
    sub = str(top / "sub")[1:]
    assert found[f"{sub}/deep/big"][2] == (top / "sub" / "deep" / "big").read_bytes()
    assert found[f"{sub}/run"][1] == 0o751 and found[f"{sub}/link"][2] == "deep/big" and found[f"{sub}/empty"][2] == b""
    assert found[str(home / "notes")[1:]][2] == b"notes\n"
    assert not [name for name in found if "beside" in name or "id_ed25519" in name or name == "etc"]
    # the same again is the same tree, and costs nothing
    before = stored_bytes(cloud)
    cloud.run(["virga", "env", "save", "mine", str(top / "sub"), str(home)], env=env, check=0)
    assert cloud.json("env", "show", "mine@1")["root"] == cloud.json("env", "show", "mine@2")["root"]
    assert stored_bytes(cloud) <= before  # what was removed earlier may go meanwhile
    r = cloud.virga("env", "save", "mine", str(tmp_path))
    assert r.returncode == 125 and b"nothing to save below" in r.stderr, "/tmp is never served"
    r = cloud.virga("env", "save", "mine", "/not/there")
    assert r.returncode == 125 and b"/not/there" in r.stderr


# ------------------------------------------------------------------ tasks

TOOL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char b[4096];
    printf("%s: uid=%d gid=%d cwd=%s A=%s HOME=%s\n", argv[0], getuid(), getgid(), getcwd(b, sizeof b), getenv("A"), getenv("HOME"));
    fflush(stdout);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "wait") == 0) { while (read(0, b, sizeof b) > 0) ; continue; }
        if (strcmp(argv[i], "sleep") == 0) { while (access("/tmp/go", F_OK) < 0) usleep(20000); continue; }
        FILE *f = fopen(argv[i], *argv[i] == '+' ? "w" : "r");
        if (*argv[i] == '+') f = fopen(argv[i] + 1, "w");
        if (!f) { perror(argv[i]); return 9; }
        for (size_t n; *argv[i] != '+' && (n = fread(b, 1, sizeof b, f)) > 0;) fwrite(b, 1, n, stdout);
        fclose(f);
    }
    return 7;
}
"""


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory):
    """What an image needs that a static program can run in it."""
    if not shutil.which("musl-gcc"):
        pytest.skip("musl-gcc is not installed: it makes the program for the image")
    tmp = tmp_path_factory.mktemp("tool")
    (tmp / "tool.c").write_text(TOOL)
    subprocess.run(["musl-gcc", "-static", "-O", "-o", tmp / "tool", tmp / "tool.c"], check=True)
    return {"bin": None, "bin/tool": ((tmp / "tool").read_bytes(), 0o755), "etc": None, "etc/hello": b"hello\n",
            "srv": None, "tmp": None, "root": None, "etc/late": b"late\n" * 200000}


def imported(cloud, rootfs, tmp_path, name, config=None):
    oci.Image([oci.layer(rootfs)], config).write_layout(str(tmp_path / name))
    cloud.virga("env", "import", str(tmp_path / name), "-n", name, check=0)


def test_a_command_runs_in_an_image(cloud, rootfs, tmp_path):
    config = {"Env": ["A=b"], "WorkingDir": "/srv", "User": "1234:56", "Entrypoint": ["tool", "/etc/hello"]}
    imported(cloud, rootfs, tmp_path, "image", config)
    r = cloud.vrun("--env", "image", "/etc/hello")
    assert r.returncode == 7, r.stderr
    assert r.stdout == b"tool: uid=1234 gid=56 cwd=/srv A=b HOME=/\nhello\nhello\n"
    assert b"the image's commands run as user 1234" in r.stderr, "whose project this is not"
    r = cloud.vrun("--env", "image@1", "-e", "A=c", "-C", "/", "/etc/debian_version")
    assert r.returncode == 9 and b"cwd=/ A=c" in r.stdout and b"/etc/debian_version: No such file" in r.stderr
    # straight from a file: imported on the way
    r = cloud.vrun("-q", "--image", str(tmp_path / "image"), "/etc/hello")
    assert r.returncode == 7 and r.stdout.endswith(b"hello\nhello\n")
    r = cloud.run(["vbatch", "-f", "--env", "image", "-N", "3", "/etc/hello"])  # several tasks, the same files
    assert r.returncode == 7 and r.stdout.count(b"] hello\n") == 6, r.stderr
    r = cloud.vrun("--env", "nothing", "true")
    assert r.returncode == 125 and b"there is no environment 'nothing'" in r.stderr


def test_what_a_command_writes_there_is_its_own(cloud, rootfs, tmp_path):
    imported(cloud, rootfs, tmp_path, "clean")
    assert cloud.vrun("--env", "clean", "/bin/tool", "+/etc/new", "+/etc/hello", "/etc/new").returncode == 7
    r = cloud.vrun("--env", "clean", "/bin/tool", "/etc/hello", "/etc/new")
    assert r.returncode == 9 and b"hello\n" in r.stdout
    # the folder it was typed in goes along, and is not its own
    (cloud.work / "in").write_text("here\n")
    r = cloud.vrun("--env", "clean", "/bin/tool", "in", "+out")
    assert r.returncode == 7 and r.stdout.endswith(b"here\n") and (cloud.work / "out").exists(), (r.stdout, r.stderr)


def test_a_registrys_image_is_fetched_once(cloud, rootfs, tmp_path):
    registry = oci.Registry({"lab/tool": oci.Image([oci.layer(rootfs, "zstd")], {"WorkingDir": "/srv"})})
    try:
        ref = f"{registry.host}/lab/tool:v1"
        for _ in range(2):
            r = cloud.vrun("--image", ref, "tool", "/etc/hello")
            assert r.returncode == 7 and r.stdout.endswith(b"hello\n"), r.stderr
        assert [path for _, path in registry.seen].count("/v2/lab/tool/manifests/v1") == 2, "once without, once with the token"
        assert not registry.faults
    finally:
        registry.close()


def held(cloud):
    return [name for _, _, files in os.walk(f"{cloud.home}/control/env/u/root/hold") for name in files]


def test_what_a_task_needs_outlives_its_name(cloud, rootfs, tmp_path):
    imported(cloud, rootfs, tmp_path, "brief")
    wait_for("all that ended to be let go", lambda: held(cloud) == [])  # however short it was
    task = cloud.out("vbatch", "--env", "brief", "tool", "sleep", "/etc/late")
    cloud.wait_state(task, "running")
    wait_for("its hold", lambda: held(cloud) == [task])
    cloud.virga("env", "rm", "brief", check=0)
    # the store's process and virgad both die: the task's node gets another link to its files
    os.kill(envd(cloud), signal.SIGKILL)
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("another virgad", lambda: cloud.pid("virgad") not in (None, old))
    wait_for("its answers", lambda: cloud.virga("status").returncode == 0)
    assert held(cloud) == [task]
    cloud.virga("task", "cancel", task, check=0)
    cloud.wait_state(task, "cancelled", "failed")
    wait_for("the release", lambda: held(cloud) == [])


def test_a_read_goes_on_with_another_life_of_the_store(cloud, rootfs, tmp_path):
    imported(cloud, rootfs, tmp_path, "lives")
    p = cloud.popen(["vrun", "--env", "lives", "tool", "wait", "/etc/late"], stdin=subprocess.PIPE)
    assert p.stdout.readline().startswith(b"tool: ")
    old = envd(cloud)
    os.kill(old, signal.SIGKILL)
    wait_for("another store", lambda: envd(cloud) not in (None, old))
    out, errors = p.communicate(timeout=90)
    assert p.returncode == 7 and out == b"late\n" * 200000, errors[-500:]


# ------------------------------------------------------------------ teams


def person(cloud, tmp_path, name, team):
    """Somebody else, at a machine of their own: `virga` as them."""
    cloud.virga("user", "add", name, "--team", team, check=0)
    token = cloud.out("virga", "token", "create", "--user", name)
    address = (Path(cloud.home) / "control/address").read_text().strip()
    env = {**cloud.env, "VIRGA_HOME": str(tmp_path / name), "HOME": str(tmp_path / name)}
    (tmp_path / name).mkdir()
    cloud.run(["virga", "login", address, "--token", token], env=env, check=0)
    return lambda *argv, **kw: cloud.run(list(argv), env=env, **kw)


def test_a_team_reads_what_is_shared_with_it_and_nobody_learns_of_the_rest(cloud, rootfs, tmp_path):
    for team in ("vision", "speech"):
        cloud.virga("team", "add", team, check=0)
    ann, bob = person(cloud, tmp_path, "ann", "vision"), person(cloud, tmp_path, "bob", "speech")
    imported(cloud, rootfs, tmp_path, "shared")
    imported(cloud, rootfs, tmp_path, "private")
    assert cloud.virga("env", "share", "shared", "--team", "nobody").returncode == 125
    cloud.virga("env", "share", "shared", "--team", "vision", check=0)
    listed = json.loads(ann("virga", "env", "list", "-o", "json", check=0).stdout)
    assert [(e["owner"], e["name"]) for e in listed] == [("root", "shared")]
    assert json.loads(bob("virga", "env", "list", "-o", "json", check=0).stdout) == []
    r = ann("vrun", "--env", "root//shared", "/bin/tool", "/etc/hello")
    assert r.returncode == 7 and r.stdout.endswith(b"hello\n"), r.stderr
    # what is not shared, and what does not exist, cannot be told apart
    says = [who("virga", "env", "show", ref).stderr.replace(ref.encode(), b"X")
            for who, ref in ((ann, "root//private"), (ann, "root//not-there"), (bob, "root//shared"), (bob, "nobody//x"))]
    assert len(set(says)) == 1 and b"there is no environment" in says[0], says
    assert bob("vrun", "--env", "root//shared", "/bin/tool").returncode == 125
    # nor does content: what root has stored is stored again for ann, under other names
    mine = set(os.listdir(f"{cloud.home}/control/env/u"))
    ann("virga", "env", "import", str(tmp_path / "private"), "-n", "own", check=0)
    assert set(os.listdir(f"{cloud.home}/control/env/u")) - mine == {"ann"}

    def names(user):
        return {f for top, _, files in os.walk(f"{cloud.home}/control/env/u/{user}") for f in files if "/dat/" in top or "/rec/" in top}
    assert names("ann") and not names("ann") & names("root")
    assert ann("virga", "env", "rm", "root//shared").returncode == 125
    cloud.virga("env", "share", "shared", "--team", "vision", "--stop", check=0)
    assert ann("vrun", "--env", "root//shared", "/bin/tool").returncode == 125
