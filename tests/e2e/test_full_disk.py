"""The control plane's disk is full: who asks is told a sentence, nothing is answered that is lost afterwards, and everything goes on when
there is room again."""
import os
import signal
import subprocess

import pytest
from virga import Cloud, wait_for

LISTS = {"user": ("name", "team", "role", "disabled"), "team": ("name", "org"), "org": ("name",), "secret": ("name", "version"), "token": ("id",),
         "price": ("id", "cpu_hour_micro"), "budget": ("name", "limit_micro"), "hook": ("name", "url")}


@pytest.fixture
def cloud():
    cloud = Cloud("limits: {web_rate: 0}\n")
    control = cloud.home / "control"
    control.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(control)], stderr=subprocess.DEVNULL, check=False).returncode:
        cloud.remove()
        pytest.skip("a file system of its own needs root")
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.down()
        cloud.kill_leftovers()
        subprocess.run(["umount", "-l", str(control)], check=False)
        cloud.remove()


def fill(path):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except OSError:
        os.close(fd)


def rows(cloud, name):
    told = cloud.json(name, "list")
    return told if isinstance(told, list) else next(v for v in told.values() if isinstance(v, list))


def lists(cloud):
    return {name: sorted([row[k] for k in keys] for row in rows(cloud, name)) for name, keys in LISTS.items()}


CHANGES = [["user", "add", "bob", "--team", "vision"], ["user", "set", "ann", "--disable"], ["user", "rm", "old"], ["team", "add", "speech"],
           ["org", "add", "acme"], ["secret", "set", "s1"], ["secret", "remove", "s0"], ["token", "create"], ["price", "set", "--cpu-hour", "1"],
           ["budget", "set", "b1", "--scope", "team:vision", "--limit", "10"], ["hook", "set", "h1", "--url", "https://192.0.2.1/x", "--event", "task.ended"]]


def test_nothing_is_answered_and_lost_when_the_disk_is_full(cloud):
    cloud.virga("team", "add", "vision", check=0)
    for name in ("ann", "old"):
        cloud.virga("user", "add", name, "--team", "vision", check=0)
    cloud.virga("secret", "set", "s0", input=b"v", check=0)
    fill(cloud.home / "control" / "fill")
    for argv in CHANGES:
        done = cloud.virga(*argv, input=b"v")
        assert done.returncode == 125 and b"No space left" in done.stderr, (argv, done)
    for argv in (["vrun", "-d", "true"], ["vbatch", "true"]):
        done = cloud.run(argv)
        assert done.returncode == 125 and b"free space" in done.stderr, done
    assert cloud.out("vrun", "echo", "still here") == "still here"
    (cloud.home / "control" / "fill").unlink()
    assert [o["name"] for o in cloud.json("org", "list") if o["name"] == "acme"] == ["acme"]
    cloud.virga("org", "add", "acme", check=0)  # what is answered now is stored, with all that came before
    cloud.vrun("true", check=0)
    before = lists(cloud)
    first = cloud.pid("virgad")
    os.kill(first, signal.SIGKILL)
    wait_for("another life of virgad", lambda: cloud.pid("virgad") not in (None, first) and cloud.virga("status").returncode == 0)
    assert lists(cloud) == before
    people = {u["name"]: u["disabled"] for u in rows(cloud, "user")}
    assert people["ann"] and not people["bob"] and "old" not in people
    assert [s["name"] for s in rows(cloud, "secret")] == ["s1"] and not rows(cloud, "token")
    assert len(rows(cloud, "price")) == len(rows(cloud, "budget")) == len(rows(cloud, "hook")) == 1
    cloud.virga("audit", "verify", check=0)
