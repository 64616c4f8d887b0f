"""Numbers for Prometheus: that virgad serves them, that they follow the format to the letter, that they say what happened, and
that nobody who asks badly or slowly is in anybody's way."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest
from virga import ROOT, Cloud, read_pid, wait_for

CONFIG = """
metrics: 127.0.0.1:0
heartbeat: 500ms
pools:
  - name: default
  - name: eights
    shape: {gpus: 1}
"""
NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
LABEL = rf'{NAME}="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)$")


def parse(text):
    """{(name, labels): value}, and no mistake of the exposition format is forgiven."""
    series, types, helped, family = {}, {}, set(), None
    assert text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in helped and len(line.split(" ", 3)[3]) > 3, line
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and name not in types and kind in ("gauge", "counter"), line
            assert (kind == "counter") == name.endswith("_total"), line
            types[name] = kind
        else:
            m = SAMPLE.match(line)
            assert m and m[1] == family and family in types, line
            labels = tuple(sorted((k, v) for k, v in re.findall(rf'({NAME})="((?:[^"\\]|\\.)*)"', m[2] or "")))
            assert len(labels) == len({k for k, _ in labels}) and (m[1], labels) not in series, line
            series[m[1], labels] = float(m[3])
            assert types[m[1]] == "gauge" or series[m[1], labels] >= 0, line
    assert helped == set(types)
    return series


class Scrape:
    def __init__(self, cloud):
        found = wait_for("the address in the log", lambda: re.findall(
            r"metrics=http://127\.0\.0\.1:([0-9]+)/metrics", (cloud.home / "log" / "virgad.log").read_text()))
        self.address = ("127.0.0.1", int(found[-1]))

    def ask(self, path, method="GET"):
        c = http.client.HTTPConnection(*self.address, timeout=30)
        c.request(method, path)
        r = c.getresponse()
        body = r.read().decode()
        c.close()
        return r.status, r.headers.get_content_type(), body

    def __call__(self):
        status, kind, body = self.ask("/metrics")
        assert (status, kind) == (200, "text/plain")
        self.series = parse(body)
        return self

    def get(self, name, **labels):
        """The sum of what has these labels; None: nothing has."""
        found = [v for (n, have), v in self.series.items() if n == name and set(labels.items()) <= set(have)]
        return sum(found) if found else None


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    cloud.up("--gpus", "fake:2")
    yield cloud
    cloud.remove()


@pytest.fixture
def scrape(cloud):
    wait_for("the cards to be seen", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 << 30] * 2)
    return Scrape(cloud)


def test_the_numbers_say_what_happened(cloud, scrape):
    before = scrape()
    assert before.get("virga_build_info") == 1 and before.get("process_resident_memory_bytes") > 1 << 20
    assert before.get("process_open_fds") > 3 and abs(before.get("process_start_time_seconds") - time.time()) < 3600
    assert before.get("virga_nodes", state="ready") == 1 and before.get("virga_node_up") == 1
    assert before.get("virga_pool_nodes", pool="eights") == 1 and before.get("virga_pool_free", pool="eights") == 2
    started = before.get("virga_scheduler_decisions_total", decision="start")
    submitted = before.get("virga_tasks_submitted_total")
    (cloud.home / "node" / "fake-gpus").mkdir(exist_ok=True)
    (cloud.home / "node" / "fake-gpus" / "0").write_text("sm 63\nmem 3221225472\npower 410000\n")
    assert cloud.vrun("true").returncode == 0
    assert cloud.vrun("false").returncode == 1
    done = cloud.out("vbatch", "-P", "eights", "sleep", "1")
    cloud.wait_state(done, "succeeded")
    busy = [cloud.out("vbatch", "-P", "eights", "sleep", "100") for _ in range(3)]
    for task in busy[:2]:
        cloud.wait_state(task, "running")
    cloud.out("virga", "gpu", "top")  # has the cards looked at
    wait_for("the sample", lambda: scrape().get("virga_gpu_utilization_ratio", index="0") == 0.63)
    assert scrape.get("virga_tasks_ended_total", outcome="succeeded") == 2
    assert scrape.get("virga_tasks_ended_total", outcome="failed") == 1
    assert scrape.get("virga_attempts_ended_total", how="ended") == 3
    assert scrape.get("virga_tasks_submitted_total") == submitted + 6
    assert scrape.get("virga_scheduler_decisions_total", decision="start") == started + 5
    assert scrape.get("virga_tasks", state="running") == 2 and scrape.get("virga_tasks", state="queued") == 1
    assert scrape.get("virga_pool_running", pool="eights") == 2 and scrape.get("virga_pool_queued", pool="eights") == 1
    assert scrape.get("virga_pool_free", pool="eights") == 0
    g = cloud.json("gpu", "list")[0]
    card = {"index": "0", "uuid": g["uuid"], "model": g["model"], "node": g["node"]}
    assert all(card.values())
    assert scrape.get("virga_gpu_memory_used_bytes", **card) == 3 << 30 and scrape.get("virga_gpu_memory_bytes", **card) == 80 << 30
    assert scrape.get("virga_gpu_power_watts", **card) == 410 and scrape.get("virga_gpu_temperature_celsius", **card) >= 30
    assert scrape.get("virga_gpu_held_ratio", **card) == 1 and scrape.get("virga_gpu_drained", **card) == 0
    held, joules = (scrape.get(f"virga_team_gpu_{x}_total", pool="eights") for x in ("seconds", "joules"))
    assert held > 1 and joules > 0, "of the one that ended, and of those that run"
    cloud.virga("gpu", "drain", f"{cloud.json('gpu', 'list')[1]['node']}:1", check=0)
    cloud.virga("task", "cancel", *busy, check=0)
    for task in busy:
        cloud.wait_state(task, "cancelled")
    wait_for("what was cancelled", lambda: scrape().get("virga_tasks_ended_total", outcome="cancelled") == 3)
    wait_for("nothing to be held", lambda: scrape().get("virga_gpu_held_ratio") == 0)
    assert scrape.get("virga_gpu_drained", index="1") == 1
    assert scrape.get("virga_team_gpu_seconds_total", pool="eights") >= held, "a counter does not go back"
    cloud.virga("gpu", "resume", f"{cloud.json('gpu', 'list')[1]['node']}:1", check=0)


def test_what_else_is_asked_for(scrape):
    assert scrape.ask("/healthz") == (200, "text/plain", "ok\n")
    assert scrape.ask("/metrics?x=1")[0] == 200
    assert scrape.ask("/")[0] == 404 and scrape.ask("/../control/ca.key")[0] == 400
    assert scrape.ask("/metrics", "POST")[0] == 405
    assert scrape.ask("/metrics", "HEAD") == (200, "text/plain", "")


def promtool(*args, **kw):
    program = shutil.which("promtool") or shutil.which("promtool", path=ROOT / "build-tools")
    if not program:
        pytest.skip("promtool is not here (Debian's package prometheus; tools/bootstrap test takes it from there)")
    return subprocess.run([program, *args], capture_output=True, text=True, **kw)


def test_promtool_finds_nothing_to_complain_about(cloud, scrape):
    cloud.vrun("true", check=0)
    done = promtool("check", "metrics", input=scrape.ask("/metrics")[2])
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), done
    bad = promtool("check", "metrics", input="# TYPE x_total gauge\nx_total 1\n")
    assert bad.returncode != 0, "a control: it can complain"


def families(scrape):
    return set(re.findall(r"^# TYPE (\S+) ", scrape.ask("/metrics")[2], re.M))


def test_every_number_is_documented_and_every_documented_one_is_there(scrape):
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    documented = {name for cell in table for name in re.findall(r"`((?:virga|process)_\w+)`", cell)}
    assert documented == families(scrape)


def expressions(node):
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"]
        node = node.values()
    elif not isinstance(node, list):
        return
    for child in node:
        yield from expressions(child)


def test_the_dashboard_and_the_alerts_ask_for_what_is_there(scrape, tmp_path):
    dashboard = json.loads((ROOT / "packaging" / "grafana" / "virga.json").read_text())
    exprs = [e.replace("$instance", ".*").replace("$node", ".*") for e in expressions(dashboard)]
    assert len(exprs) > 30 and len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])
    alerts = ROOT / "packaging" / "prometheus" / "virga.rules.yml"
    known = families(scrape) | {"up"}
    for e in exprs + re.findall(r"expr: (.*)", alerts.read_text()):
        assert "$" not in e, e
        named = set(re.findall(r"\b(up|(?:virga|process)_\w+)\b", e))
        assert named and named <= known, e
    for q in re.findall(r"label_values\((\w+)", json.dumps(dashboard)):
        assert q in known, q
    rules = {"groups": [{"name": "dashboard", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(exprs)]}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))  # JSON is YAML
    for file in (tmp_path / "rules.yml", alerts):
        done = promtool("check", "rules", str(file))
        assert done.returncode == 0, done
    done = promtool("test", "rules", str(alerts.with_name("virga.rules.test.yml")))
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)", alerts.with_name("virga.rules.test.yml").read_text()))
    assert tested == set(re.findall(r"alert: (\w+)", alerts.read_text())), "each alert has its test"


def test_readiness_on_both_ports(cloud, scrape):
    assert json.loads(scrape.ask("/readyz")[2]) == {"ready": True, "why": []}
    assert scrape.ask("/readyz")[:2] == (200, "application/json")
    url = cloud.json("status")["url"]
    context = ssl.create_default_context(cafile=cloud.home / "control" / "ca.crt")
    host, port = re.match(r"https://(.*):(\d+)$", url).groups()
    for path, body in (("/healthz", b"ok\n"), ("/readyz", b'{"ready":true,"why":[]}')):
        c = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
        c.request("GET", path)
        r = c.getresponse()
        assert (r.status, r.read()) == (200, body)
        c.close()
    wait_for("the requests to be counted", lambda: scrape().get("virga_http_requests_total", **{"class": "2xx"}) >= 2)
    # A node that has not come back: tasks may run there that nobody knows.
    cloud.out("vrun", "-d", "-n", "there", "sleep", "600")
    cloud.wait_state("there", "running")
    agent = read_pid(cloud.home / "node" / "pid")
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(read_pid(cloud.home / "control" / "pid"), signal.SIGKILL)
        wait_for("virgad to be back", lambda: ask_quietly(Scrape(cloud)))
        again = Scrape(cloud)
        status, kind, text = again.ask("/readyz")
        assert (status, kind) == (503, "application/json")
        assert json.loads(text) == {"ready": False, "why": ["nodes of its earlier life have not reported yet"]}
        assert again().get("virga_ready") == 0 and again.ask("/healthz")[0] == 200
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_for("it to be ready", lambda: ask_quietly(Scrape(cloud), "/readyz"))
    cloud.virga("task", "cancel", "there", check=0)


def test_who_asks_badly_or_never_ends_is_in_nobodys_way(cloud, scrape):
    idle = [socket.create_connection(scrape.address) for _ in range(32)]
    assert socket.create_connection(scrape.address).recv(1) == b"", "there is room for so many"
    assert cloud.out("vrun", "echo", "fine") == "fine"
    for s in idle[1:]:
        s.close()
    wait_for("room", lambda: ask_quietly(scrape))
    idle[0].sendall(b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 5000)
    assert idle[0].recv(100).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection(scrape.address) as s:
        s.sendall(b"\x16\x03\x01\0\0hello\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 400 ")


def ask_quietly(scrape, path="/healthz"):
    try:
        return scrape.ask(path)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_without_an_address_nothing_listens(cloud):
    other = Cloud("heartbeat: 500ms\n")
    try:
        other.up()
        assert other.out("vrun", "echo", "fine") == "fine"
        assert "metrics=" not in (other.home / "log" / "virgad.log").read_text()
        assert "metrics=" in (cloud.home / "log" / "virgad.log").read_text(), "control"
    finally:
        other.remove()
