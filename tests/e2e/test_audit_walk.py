"""Whatever changes the cloud leaves one entry in the audit log: everything that src/control/access.tbl calls NOTED is done here once,
and counted; what it calls LOOKS is asked, and leaves none."""
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
from conftest import close_cloud
from rest import rest_of
from virga import ROOT, Cloud, noted, seen_by_tasks, wait_for

CONFIG = """
web: 127.0.0.1:0
pools:
  - name: default
  - name: later
    nodes: {labels: {none: none}}
"""
TABLE = dict(re.findall(r"^ACCESS\((\w+), \w+, \w+, (NOTED|LOOKS),", (ROOT / "src/control/access.tbl").read_text(), re.M))
# What needs more than one machine, a driver or a provider, or what no command asks for, is counted where that is.
ELSEWHERE = {"JOIN": "test_joining.py", "CERT_RENEW": "test_joining.py", "SHARE_SET": "test_share.py", "LOGIN": "test_oidc_liar.py",
             "SHUTDOWN": "tests/unit/control/test-access.c"}


@pytest.fixture(scope="module")
def world():
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:1")
    wait_for("the card", lambda: cloud.json("gpu", "list"))
    yield cloud
    close_cloud(cloud)


def acts(cloud):
    """Request -> what to do, and what the log says of it. In this order: what is made is changed and removed."""
    node = cloud.json("node", "list")[0]["name"]
    held = {}

    def task(*argv):
        held["task"] = cloud.out("vbatch", "--pool", "later", *argv).split()[-1]

    def token():
        held["token"] = cloud.out("virga", "token", "create").strip()[4:20]

    def session():
        cloud.virga("session", "end", "place", check=0)

    do = cloud.virga
    yield "RUN", lambda: task("true"), r"task [0-9a-f]{16} submitted$"
    yield "RUN", lambda: task("--shards", "5", "true"), r"task [0-9a-f]{16} submitted, 5 tasks$"
    yield "TASK_SIGNAL", lambda: do("task", "cancel", held["task"], check=0), r"task [0-9a-f]{16} cancelled$"
    yield "RUN", lambda: cloud.out("vrun", "--session", "place", "--keep", "1h", "true"), r"task [0-9a-f]{16} submitted$"
    yield "SESSION_END", session, r"session root/place ended$"
    yield "RUN", lambda: do("batch", "--every", "1h", "--name", "hourly", "--pool", "later", "true", check=0), r"schedule add [0-9a-f]{16} "
    yield "SCHEDULE_REMOVE", lambda: do("schedule", "remove", "hourly", check=0), r"schedule remove [0-9a-f]{16}$"
    yield "NODE_SET", lambda: do("node", "drain", node, check=0), rf"node {node}: draining$"
    yield "NODE_SET", lambda: do("node", "resume", node, check=0), rf"node {node}: ready$"
    yield "NODE_INVITE", lambda: do("node", "invite", check=0), r"invitation [0-9a-f]{16} made$"
    yield "GPU_SET", lambda: do("gpu", "drain", f"{node}:0", check=0), rf"gpu {node}:0: drained$"
    yield "ORG_SET", lambda: do("org", "add", "acme", check=0), r"organisation acme added$"
    yield "TEAM_ADD", lambda: do("team", "add", "vision", check=0), r"team vision added to organisation main$"
    yield "TEAM_SET", lambda: do("team", "set", "vision", "--org", "acme", check=0), r"team vision moved to organisation acme$"
    yield "USER_ADD", lambda: do("user", "add", "ann", "--team", "vision", check=0), r"user ann added to team vision as member$"
    yield "USER_SET", lambda: do("user", "set", "ann", "--role", "lead", check=0), r"user ann: role lead$"
    yield "TOKEN_CREATE", token, r"token [0-9a-f]{16} made for user root$"
    yield "TOKEN_REVOKE", lambda: do("token", "revoke", held["token"], check=0), r"token [0-9a-f]{16} of user root revoked$"
    yield "SECRET_SET", lambda: do("secret", "set", "key", input=b"x", check=0), r"secret key of user:root set$"
    yield "SECRET_ROTATE", lambda: do("secret", "rotate", check=0), r"master key rotated: 1 secret is sealed anew"
    yield "SECRET_REMOVE", lambda: do("secret", "remove", "key", check=0), r"secret key of user:root removed$"
    yield "PRICE_SET", lambda: do("price", "set", "--gpu-hour", "2", check=0), r"price 1: "
    yield "BUDGET_SET", lambda: do("budget", "set", "all", "--scope", "cloud", "--limit", "1000", check=0), r"budget 'all': cloud, 1000000000 "
    yield "BUDGET_REMOVE", lambda: do("budget", "remove", "all", check=0), r"budget 'all' \(cloud\) is removed$"
    yield "CREDIT", lambda: do("cost", "credit", "--user", "root", "--amount", "3", "--why", "sorry", check=0), r"credit of 3000000 "
    yield "HOOK_SET", lambda: do("hook", "set", "tell", "--url", "https://example.org/x", "--event", "task.failed", check=0), r"hook tell: "
    yield "HOOK_REMOVE", lambda: do("hook", "remove", "tell", check=0), r"hook root/tell removed$"
    with tempfile.TemporaryDirectory(prefix="vg-audit-", dir=seen_by_tasks()) as folder:
        (Path(folder) / "file").write_text("x")
        yield "ENV", lambda: do("env", "save", "tools", folder, check=0), r"environment tools saved$"
    yield "ENV", lambda: do("env", "share", "tools", "--team", "vision", check=0), r"environment tools shared with team vision$"
    yield "ENV", lambda: do("env", "rm", "tools", check=0), r"environment tools removed$"
    yield "USER_REMOVE", lambda: do("user", "rm", "ann", check=0), r"user ann removed$"
    yield "TEAM_REMOVE", lambda: do("team", "rm", "vision", check=0), r"team vision removed$"
    yield "ORG_REMOVE", lambda: do("org", "rm", "acme", check=0), r"organisation acme removed$"
    yield "CONFIG_RELOAD", lambda: do("config", "reload", check=0), r"configuration: "


def last(cloud):
    return max((e["seq"] for e in cloud.json("audit", "list", "--limit", "1")["audit"]), default=0)


def test_everything_that_changes_something_leaves_one_entry(world):
    done = set()
    for request, act, says in acts(world):
        before = last(world)
        act()
        new = noted(world, after=before)
        assert len(new) == 1, (request, [e["what"] for e in new])
        assert re.match(says, new[0]["what"]), (request, new[0]["what"])
        assert (new[0]["who"], new[0]["from"]) == ("root", "local"), (request, new[0])
        done.add(request)
    missing = {r for r, audit in TABLE.items() if audit == "NOTED"} - done - ELSEWHERE.keys()
    assert not missing, f"nothing here does {missing}: whatever is NOTED is done once and counted"
    assert not done & {r for r, audit in TABLE.items() if audit == "LOOKS"}


def test_who_looks_leaves_nothing(world):
    rest = rest_of(world)
    before = last(world)
    paths = [p for p, ops in rest.get("/openapi.json")["paths"].items() if "get" in ops and "{" not in p and "login" not in p]
    assert len(paths) > 20
    for path in paths:
        if path in ("/events",):
            continue
        rest.raw("GET", "/api/v1" + path)
    assert [e["what"] for e in noted(world, after=before)] == []


def test_what_signals_do_is_noted(world):
    before = last(world)
    os.kill(world.pid("virgad"), signal.SIGHUP)
    wait_for("the configuration to be read again", lambda: noted(world, "configuration: ", after=before))
    before = last(world)
    assert world.down().returncode == 0
    world.up("--gpus", "fake:1")
    wait_for("the control plane to be back", lambda: world.virga("status").returncode == 0)
    assert [e["what"] for e in noted(world, after=before)] == ["shutdown: Terminated"]
    assert world.json("audit", "verify")["broken"] is None
