"""virga.Client against a real cloud: REST alone, with the cloud's own authority pinned."""
import shutil
import sys

import pytest
from virga import ROOT

CONFIG = """
pools:
  - name: default
  - name: cpu
    shape: {cpus: 0.1, mem: 64M}
  - name: paid
    shape: {cpus: 0.1, mem: 64M}
    price: {cpu_hour: 3600}
"""


@pytest.fixture(scope="module")
def ask(cloud):
    """Runs a script that has a client `c`, in a place without Virga's programs; what it printed."""
    shutil.copytree(ROOT / "sdk/python/src/virga", cloud.work / "lib" / "virga", ignore=shutil.ignore_patterns("__pycache__"))
    env = {"PATH": "/nonexistent", "PYTHONPATH": str(cloud.work / "lib"), "VIRGA_HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1",
           "VIRGA_URL": cloud.json("status")["url"], "VIRGA_TOKEN": cloud.out("virga", "token", "create")}

    def run(text, **more):
        (cloud.work / "script.py").write_text("import time, virga\nc = virga.Client()\n" + text)
        done = cloud.run([sys.executable, "script.py"], env={**env, **more})
        assert done.returncode == 0, done.stderr.decode() + cloud.logs()
        return done.stdout.decode()

    return run


def test_what_the_cloud_has(ask):
    assert ask("""
print(c.me()["user"], c.status()["nodes_ready"], [p["name"] for p in c.pools()], [n["state"] for n in c.nodes()], c.gpus())
assert c.list("users") and c.get("/openapi.json")["openapi"].startswith("3.1")
assert set(c.queue("cpu"))
""") == "root 1 ['default', 'cpu', 'paid'] ['ready'] []\n"


def test_a_task_from_its_submission_to_its_end(ask):
    assert ask("""
t = c.submit(["sh", "-c", "echo one; echo two >&2; sleep 0.3; printf three; exit 5"], name="told", pool="cpu", labels={"k": "v"}, env={"PATH": "/bin"})
print(sorted(c.logs(t["id"], follow=True)))
print(c.wait(t["id"])["status"], sorted(c.logs(t["id"])), c.task(t["id"])["labels"])
try:
    c.wait(t["id"], check=True)
except virga.TaskFailed as e:
    print(e.status, e.task_id == t["id"])
print([x["name"] for x in c.tasks(labels={"k": "v"}, state="failed")], list(c.tasks(labels={"k": "w"})))
print(c.why(t["id"])["state"], c.estimate(["true"], pool="cpu")["code"])
""") == "['one', 'three', 'two']\n5 ['one', 'three', 'two'] {'k': 'v'}\n5 True\n['told'] []\nfailed free\n"


def test_ends_and_times(ask):
    assert ask("""
t = c.submit(["sleep", "600"])
try:
    c.wait(t["id"], timeout=0.5)
except TimeoutError:
    print("not yet")
c.cancel(t["id"])
print(c.wait(t["id"])["state"])
try:
    c.wait(t["id"], check=True)
except virga.TaskCancelled:
    print("cancelled")
""") == "not yet\ncancelled\ncancelled\n"


def test_what_things_cost(ask, cloud):
    """A tenth of a CPU for a second is a tenth of the price of a CPU-second, which is 1. It is held a little longer than it runs."""
    out = ask("""
t = c.wait(c.submit(["sleep", "0.3"], pool="paid", project="vision")["id"])
held = t["ended_usec"] - t["started_usec"]
while not c.cost("project", project="vision")["total"]["cost_micro"]:
    time.sleep(0.05)
row, = c.cost("project", project="vision")["rows"]
print(row["key"], held // 10 - 100 < row["cost_micro"] < held // 10 + 3000000, c.estimate(["true"], pool="paid", time_limit=10)["currency"], c.budgets())
print(t["id"])
""")
    told, task = out.splitlines()
    assert told == "['vision'] True USD []"
    (cloud.work / "plain.py").write_text(f"import virga, time\nprint(0.02 < virga.Task('{task}').cost < 10)\n"
                                         "t = virga.submit(['sleep', '600'], pool='paid')\n"
                                         "while not t.cost: time.sleep(0.05)\nt.cancel()\n")
    assert cloud.run([sys.executable, "plain.py"], env={**cloud.env, "PYTHONPATH": str(cloud.work / "lib")}, check=0).stdout == b"True\n"


def test_a_submission_that_is_sent_again_finds_the_first(ask):
    assert ask("""
a, b = (c.submit(["true"], key="the-same", name="once") for _ in range(2))
print(a["id"] == b["id"], len(list(c.tasks(name="once"))))
""") == "True 1\n"


def test_long_lists_come_page_by_page(ask):
    assert ask("""
for n in range(12):
    c.submit(["true"], name="page")
import virga.client
virga.client._PAGE = 5
ids = [t["id"] for t in c.tasks(name="page")]
print(len(ids), len(set(ids)), [t["id"] for t in c.tasks(name="page", limit=7)] == ids[:7])
""") == "12 12 True\n"


def test_events_as_they_happen(ask):
    assert ask("""
import threading
begun = threading.Event()
def work():
    begun.wait(30)
    c.submit(["true"], name="seen")
threading.Thread(target=work).start()
threading.Timer(1, begun.set).start()  # where there is nothing to tell yet
for event in c.events("tasks"):
    begun.set()
    if event.kind == "task" and event.data["name"] == "seen" and event.data["state"] == "succeeded":
        print("seen")
        break
""") == "seen\n"


def test_refusals_have_the_cloud_s_sentence(ask):
    out = ask("""
for f in (lambda: c.task("0123456789abcdef"), lambda: c.submit(["true"], pool="nowhere"), lambda: c.get("/nothing"), lambda: c.submit([])):
    try:
        f()
    except virga.ApiError as e:
        print(e.status, e.code, len(str(e)) > 20)
""")
    assert out == "404 NOT_FOUND True\n404 NOT_FOUND True\n404 NOT_FOUND True\n400 INVALID True\n"


def test_another_cloud_is_not_trusted(ask, cloud):
    token = cloud.out("virga", "token", "create")
    wrong = token[:-4] + ("0000" if not token.endswith("0000") else "1111")
    said = "try:\n    c.me()\nexcept virga.VirgaError as e:\n    print(type(e).__name__, e)\n"
    assert "this is not the cloud that the token belongs to" in ask(said, VIRGA_TOKEN=wrong)
    ca = (cloud.home / "control/ca.crt").read_text()
    (cloud.work / "ca.crt").write_text(ca)
    assert "ApiError" in ask(said, VIRGA_TOKEN=token[:4] + "0" * 16 + token[20:], VIRGA_CA=str(cloud.work / "ca.crt"))
    assert "VirgaError cannot reach the cloud" in ask(said, VIRGA_CA="/etc/ssl/certs/ca-certificates.crt")


def test_without_arguments_it_is_the_cloud_that_virga_has(ask, cloud):
    before = len(cloud.json("token", "list"))
    (cloud.work / "plain.py").write_text("import virga\nfor _ in range(3):\n    with virga.Client() as c:\n"
                                         "        print(c.me()['user'], c.url.startswith('https://'))\n")
    out = cloud.run([sys.executable, "plain.py"], env={**cloud.env, "PYTHONPATH": str(cloud.work / "lib")}, check=0).stdout
    assert out == b"root True\n" * 3
    assert len(cloud.json("token", "list")) == before + 1, "one token for a program"


def test_a_cloud_with_a_certificate_for_browsers(make_cloud):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    cloud = make_cloud()
    key, certificate = cloud.home / "web.key", cloud.home / "web.crt"
    cloud.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out",
               str(certificate), "-days", "2", "-subj", "/CN=cloud", "-addext", "subjectAltName=IP:127.0.0.1"], check=0)
    (cloud.home / "config.yaml").write_text(f"web: 127.0.0.1:0\nweb_cert: {certificate}\nweb_key: {key}\n")
    cloud.up()
    shutil.copytree(ROOT / "sdk/python/src/virga", cloud.work / "lib" / "virga", ignore=shutil.ignore_patterns("__pycache__"))
    (cloud.work / "plain.py").write_text("import virga\ntry:\n    print(virga.Client().me()['user'])\nexcept virga.VirgaError as e:\n    print(e)\n")
    env = {**cloud.env, "PYTHONPATH": str(cloud.work / "lib")}
    trusting = {**env, "SSL_CERT_FILE": str(certificate)}  # as if it were one of the system's
    assert cloud.run([sys.executable, "plain.py"], env=trusting, check=0).stdout == b"root\n"
    assert b"this is not the cloud that the token belongs to" in cloud.run([sys.executable, "plain.py"], env=env, check=0).stdout
