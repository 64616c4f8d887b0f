"""The dashboard in a real browser, against a real cloud with simulated GPUs. The scripts are in tests/node; pictures of what they
saw, and what they measured, are left in build/artefacts/web. Asserted is what is a count, not what is a time."""
import json
import os
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import urllib.request
from pathlib import Path

import pytest
from rest import rest_of
from virga import BIN, Cloud, ROOT, WAIT_S, wait_for

NODE = ROOT / "tests" / "node"
OUT = BIN.parent / "artefacts" / "web"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STORED = 100_000
CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: default
    price: {gpu_hour: 36, cpu_hour: 0.36}
    description: for everybody
  - name: shared
    class: shared
    price: {gpu_hour: 18}
"""

# Prints its address and answers for its key, as Jupyter does.
JUPYTER = """#!/usr/bin/python3
import http.server
key = "5ca1ab1e" * 6
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/lab?token=" + key else 403)
        self.end_headers()
        self.wfile.write(b"a notebook")
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 8888), Handler)
print("    http://localhost:8888/lab?token=" + key, flush=True)
server.serve_forever()
"""


def packages():
    """node_modules of tests/node, as its lock says; a sentence when they cannot be had."""
    if not shutil.which("npm") or not CHROMIUM:
        return "npm and chromium are needed (tools/bootstrap build test)"
    have, lock = NODE / "node_modules" / ".package-lock.json", NODE / "package-lock.json"
    if not have.exists() or have.stat().st_mtime < lock.stat().st_mtime:
        done = subprocess.run(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"], cwd=NODE, capture_output=True, timeout=300, check=False)
        if done.returncode:
            return f"npm could not get playwright-core and axe-core: {done.stderr.decode(errors='replace').strip()[-200:]}"
    if not (ROOT / "web" / "dist" / "index.html").exists():
        return "this build has no dashboard (tools/build-web)"
    return None


@pytest.fixture(scope="module", autouse=True)
def ready():
    missing = packages()
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="module")
def cloud(ready):
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:4")
    cards = cloud.home / "node" / "fake-gpus"
    cards.mkdir(exist_ok=True)
    for i, use in enumerate((71, 3, 0, 96)):
        (cards / str(i)).write_text(f"sm {use}\nmem_used {use << 29}\npower {100000 + use * 5000}\n")
    yield cloud
    cloud.down()
    cloud.remove()


def browse(cloud, script, timeout=240, ready=None, **more):
    """Runs a script of tests/node; what it told, as one object. `ready` is called after the first thing it told."""
    token = cloud.json("token", "create", "--name", script)["token"]
    env = {**os.environ, "WEB_URL": cloud.json("status")["url"], "WEB_TOKEN": token, "WEB_OUT": str(OUT), "CHROMIUM": CHROMIUM,
           "VIRGA_TEST_WAIT": str(WAIT_S), **{f"WEB_{k.upper()}": str(v) for k, v in more.items()}}
    with subprocess.Popen(["node", NODE / f"{script}.mjs"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as node:
        try:
            first = node.stdout.readline() if ready else b""
            if first:
                ready()
            out, err = node.communicate(timeout=timeout)
        except BaseException:
            node.kill()
            raise
    out = first + out
    assert node.returncode == 0, f"{script}: {out.decode()}\n{err.decode(errors='replace')[-4000:]}\n{cloud.logs()}"
    told = {k: v for line in out.splitlines() for k, v in json.loads(line).items()}
    print(script, json.dumps(told))
    (OUT / f"{script}.json").write_text(json.dumps(told, indent=1))
    return told


def test_what_is_pure_is_right():
    done = subprocess.run(["npm", "test", "--silent"], cwd=ROOT / "web", capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_a_new_users_path(cloud):
    told = browse(cloud, "web-path")
    assert told["home_bytes"] < 300_000
    task = cloud.task(told["task"])
    assert (task["name"], task["state"], task["want"]["gpus"]) == ("first", "cancelled", 1)
    assert len(list(OUT.glob("*.png"))) >= 6


def test_every_page_can_be_used_by_everybody(cloud):
    task = cloud.out("vbatch", "--gpus", "1", "-n", "tidy", "-l", "phase=tune", "--", "sh", "-c", "seq 200; sleep 600")
    cloud.wait_state(task, "running")
    cloud.out("vbatch", "-N", "4", "-n", "fold", "--", "true")
    try:
        told = browse(cloud, "web-pages", task=task)
    finally:
        cloud.virga("task", "cancel", task)
    assert told["pages"] == 54


def test_the_page_comes_back_with_virgad(cloud):
    cloud.wait_state(cloud.out("vbatch", "-n", "before", "--", "true"), "succeeded")

    def die():
        old = cloud.pid("virgad")
        os.kill(old, signal.SIGKILL)
        wait_for("another virgad", lambda: cloud.pid("virgad") not in (None, old) and cloud.virga("status").returncode == 0)
        cloud.out("vbatch", "-n", "meanwhile", "--", "true")

    browse(cloud, "web-break", ready=die, door=cloud.out("virga", "dashboard", "--print"))


def test_whoever_may_changes_the_cloud_by_the_keys_alone(cloud):
    cloud.virga("user", "add", "mem", "--role", "member", check=0)
    member = cloud.json("token", "create", "--user", "mem", "--name", "of-member")["token"]
    browse(cloud, "web-admin", member=member)
    people = {u["name"]: u for u in cloud.json("user", "list")}
    assert (people["nia"]["team"], people["nia"]["role"], people["nia"]["email"]) == ("blue", "lead", "nia@example.org")
    assert "evil" not in people
    budget = next(b for b in cloud.json("budget", "list") if b["name"] == "web")
    assert (budget["limit_micro"], budget["scope"], budget["warn_percent"]) == (1_200_500_000, "cloud", [40, 90])
    assert [s["name"] for s in cloud.json("secret", "list")] == ["WEB_KEY"]
    assert {t["name"] for t in cloud.json("token", "list")}.isdisjoint({"of-nia", "of-member"})


def test_a_notebook_of_the_form_is_opened_from_ones_machine(cloud):
    put = f"mkdir /tmp/nb && printf %s {shlex.quote(JUPYTER)} >/tmp/nb/jupyter && chmod 755 /tmp/nb/jupyter"
    rest = rest_of(cloud, cloud.json("token", "create", "--name", "notebook")["token"])
    cloud.wait_state(rest.post("/tasks", {"argv": ["sh", "-c", put], "session": "paper"}, status=201).json["id"], "succeeded")
    told = browse(cloud, "web-notebook", path="/tmp/nb:/usr/bin:/bin")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    assert "-p 8888:8888" in told["line"] and told["address"].startswith("http://127.0.0.1:8888/lab?token=")
    there = told["address"].replace(":8888/", f":{port}/")
    lead = cloud.popen(shlex.split(told["line"].replace("8888:8888", f"{port}:8888")))
    try:
        assert wait_for("the notebook to answer", lambda: answer_of(there)) == b"a notebook"
    finally:
        lead.kill()
        lead.communicate()
        cloud.virga("task", "cancel", told["task"])


def answer_of(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read()
    except OSError:
        return None


def fill(home, total):
    """So many ended tasks in the store of a cloud that is down, each like the one that is there."""
    db = sqlite3.connect(home / "control" / "state.db")
    names = [c[1] for c in db.execute("PRAGMA table_info(tasks)") if c[1] != "seq"]
    row = dict(zip(names, db.execute(f"SELECT {','.join(names)} FROM tasks").fetchone()))
    old = row["name"].encode()
    spec, newest = row["spec"], row["created_usec"]
    assert row["ended"] and spec.count(old) == 1

    def made():
        for i in range(total):
            name = f"t{i:05d}"
            row.update(id=f"{0x1000000000000000 + i:016x}", name=name, spec=spec.replace(old, name.encode()), created_usec=newest - (total - i) * 1_000_000)
            yield tuple(row.values())

    db.execute("PRAGMA synchronous=OFF")
    with db:
        db.execute("DELETE FROM tasks")
        db.executemany(f"INSERT INTO tasks({','.join(names)}) VALUES({','.join('?' * len(names))})", made())
    db.close()


def test_a_hundred_thousand_tasks_scroll(ready):
    cloud = Cloud(CONFIG)
    try:
        cloud.up()
        few = {k: cloud.env[k] for k in ("PATH", "VIRGA_HOME")}  # its variables are in each of the copies
        cloud.wait_state(cloud.out("vbatch", "-n", "t-----", "--", "true", env=few), "succeeded")
        cloud.down()
        fill(cloud.home, STORED)
        cloud.up()
        told = browse(cloud, "web-list", total=STORED)
        assert told["rows_without_element"] == 0
        cloud.down()
    finally:
        cloud.remove()
