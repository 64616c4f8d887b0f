"""Hooks: what happens is told to whoever asked for it, signed, at least once whatever dies in between, and to nobody else."""
import base64
import email
import hashlib
import hmac
import http.server
import json
import os
import re
import signal
import socketserver
import ssl
import subprocess
import threading
import time

import pytest
from virga import ROOT, Cloud, read_pid, wait_for

CONFIG = """
heartbeat: 500ms
hooks: {retry: 200ms, give_up: 1h, pause_after: 1s}
mail: {server: "127.0.0.1:%d", from: cloud@example.org, tls: none}
"""


class Server:
    """Takes what is sent and answers with `status`; `requests` are (path, headers, body)."""

    def __init__(self, cert=None):
        self.requests, self.status, self.lock = [], 200, threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers), body))
                    status = outer.status
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.url = f"{'https' if cert else 'http'}://127.0.0.1:{self.port}"
        if cert:
            self.http.socket = tls_of(cert).wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def take(self, path, n=1):
        """The n first requests for this path, parsed."""
        got = wait_for(f"{n} requests for {path}", lambda: (g := [r for r in self.requests if r[0] == path]) and len(g) >= n and g)
        return [(headers, json.loads(body)) for _, headers, body in got]

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def tls_of(cert):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*cert)
    return context


def make_cert(folder, name):
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


class MailServer(socketserver.ThreadingTCPServer):
    """SMTP, as little of it as is needed."""
    allow_reuse_address = daemon_threads = True

    def __init__(self, cert=None):
        self.mails, self.logins = [], []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                say = lambda text: self.wfile.write(text.encode() + b"\r\n")
                mail = {"to": []}
                say("220 ready")
                for line in self.rfile:
                    word = line.split()[0].upper() if line.split() else b""
                    if word == b"DATA":
                        say("354 go on")
                        text = b""
                        while (more := self.rfile.readline()) != b".\r\n":
                            text += more[1:] if more.startswith(b".") else more
                        outer.mails.append({**mail, "text": text})
                        mail = {"to": []}
                    elif word == b"EHLO":
                        say("250-here")
                        say("250 AUTH PLAIN")
                        continue
                    elif word == b"AUTH":
                        words = line.split()
                        if len(words) < 3:
                            say("334 ")
                            words.append(self.rfile.readline().strip())
                        outer.logins.append(base64.b64decode(words[2]).split(b"\0")[1:])
                        say("235 welcome")
                        continue
                    elif word == b"MAIL":
                        mail["from"] = re.search(rb"<(.*)>", line)[1].decode()
                    elif word == b"RCPT":
                        mail["to"].append(re.search(rb"<(.*)>", line)[1].decode())
                    say("221 bye" if word == b"QUIT" else "250 fine")
                    if word == b"QUIT":
                        return

        super().__init__(("127.0.0.1", 0), Handler)
        if cert:
            self.socket = tls_of(cert).wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def mail():
    server = MailServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def cloud(mail):
    cloud = Cloud(CONFIG % mail.server_address[1])
    cloud.up("--gpus", "fake:1")
    yield cloud
    cloud.remove()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_hooks_left(cloud):
    yield
    for hook in cloud.json("hook", "list"):
        cloud.virga("hook", "remove", hook["name"], check=0)


def set_hook(cloud, name, url, events, *more):
    return cloud.out("virga", "hook", "set", name, "--url", url, "--event", events, *more)


def documented_verify():
    """The function that docs/hooks.md shows, as it stands there."""
    text = (ROOT / "docs" / "hooks.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    space = {}
    exec(code, space)
    return space["verify"]


def test_tasks_are_told_and_signed(cloud, server):
    secret = set_hook(cloud, "mine", server.url + "/mine", "task.started,task.ended,task.failed")
    assert re.fullmatch(r"[0-9a-f]{64}", secret)
    assert cloud.vrun("-n", "good", "true").returncode == 0
    cloud.wait_state("good", "succeeded")  # vrun returns a moment before
    assert cloud.vrun("-n", "bad", "false").returncode == 1
    got = server.take("/mine", 5)
    assert [(m["event"], m["data"]["name"]) for _, m in got] == [
        ("task.started", "good"), ("task.ended", "good"), ("task.started", "bad"), ("task.ended", "bad"), ("task.failed", "bad")]
    for headers, m in got:
        assert headers["Virga-Event"] == m["event"] and headers["Virga-Delivery"] == m["id"] and m["hook"] == "mine"
        assert headers["Content-Type"] == "application/json"
    assert len({m["id"] for _, m in got}) == 5
    assert got[1][1]["data"] == cloud.json("task", "get", "good") | {"gpu_usage": got[1][1]["data"].get("gpu_usage")}
    verify = documented_verify()
    path, headers, body = server.requests[0]
    assert verify(secret, headers["Virga-Signature"], body)
    assert not verify(secret, headers["Virga-Signature"], body + b" ")
    assert not verify("another secret of its own", headers["Virga-Signature"], body)
    t = int(re.match(r"t=(\d+),v1=[0-9a-f]{64}$", headers["Virga-Signature"])[1])
    assert abs(time.time() - t) < 600
    old = f"t={t - 3600},v1=" + hmac.new(secret.encode(), b"%d." % (t - 3600) + body, hashlib.sha256).hexdigest()
    assert not verify(secret, old, body), "an old message is not taken again"
    listed = wait_for("all to be counted", lambda: (h := cloud.json("hook", "list")[0])["sent"] == 5 and h)
    assert listed["waiting"] == 0 and listed["failed"] == 0 and not listed.get("new_secret")
    assert secret not in json.dumps(listed)
    cloud.virga("down", check=0)
    for name in ("state.db", "state.db-wal"):
        f = cloud.home / "control" / name
        assert not f.exists() or secret.encode() not in f.read_bytes(), f"the secret is readable in {name}"
    cloud.up("--gpus", "fake:1")
    assert cloud.json("hook", "list")[0] == listed


def test_retried_until_it_is_taken_across_a_kill(cloud, server):
    set_hook(cloud, "stubborn", server.url + "/s", "task.ended")
    server.status = 503
    assert cloud.vrun("-n", "told", "true").returncode == 0
    server.take("/s", 2)
    # Killed while it waits: what was to be told is in the store.
    os.kill(read_pid(cloud.home / "control" / "pid"), signal.SIGKILL)
    before = len(server.requests)
    wait_for("another try after the restart", lambda: len(server.requests) > before)
    server.status = 200
    wait_for("it to be taken", lambda: (h := cloud.json("hook", "list")[0])["waiting"] == 0 and h["sent"] == 1)
    got = server.take("/s")
    assert {m["id"] for _, m in got} == {got[0][1]["id"]} and got[0][1]["data"]["name"] == "told"
    n = len(server.requests)
    assert cloud.vrun("true").returncode == 0
    wait_for("the next", lambda: len(server.requests) == n + 1)


def test_every_end_is_told_whatever_is_killed_in_between(cloud, server):
    set_hook(cloud, "all", server.url + "/all", "task.ended")
    server.status = 503  # nothing is taken before the last kill
    names = [f"end{i}" for i in range(12)]
    tasks = {name: cloud.out("vbatch", "-n", name, "sleep", f"0.{i % 7 + 1}") for i, name in enumerate(names)}
    for _ in range(3):
        seen = len(server.requests)
        pid = wait_for("virgad", lambda: read_pid(cloud.home / "control" / "pid"))
        os.kill(pid, signal.SIGKILL)
        wait_for("another life of virgad", lambda: (p := read_pid(cloud.home / "control" / "pid")) and p != pid)
        wait_for("it to go on", lambda: len(server.requests) > seen or cloud.virga("status").returncode == 0)
    for task in tasks.values():
        cloud.wait_state(task, "succeeded")
    os.kill(read_pid(cloud.home / "control" / "pid"), signal.SIGKILL)
    with server.lock:
        server.requests.clear()
        server.status = 200
    wait_for("all to be told", lambda: set(names) <= {json.loads(b)["data"]["name"] for p, _, b in server.requests if p == "/all"})
    ids = {}
    for _, m in server.take("/all"):
        assert ids.setdefault(m["data"]["name"], m["id"]) == m["id"], "what comes twice has the same id"
    assert len(set(ids.values())) == len(names)


def test_long_failure_pauses_with_an_audit_line(cloud, server):
    set_hook(cloud, "broken", server.url + "/b", "task.ended")
    server.status = 500
    assert cloud.vrun("true").returncode == 0
    hook = wait_for("the pause", lambda: (h := cloud.json("hook", "list")[0])["paused"] and h)
    assert "500" in hook["last_error"] and hook["waiting"] == 1 and hook["failed"] > 1
    assert "hook broken paused" in (cloud.home / "log" / "virgad.log").read_text()
    server.status = 200
    cloud.virga("hook", "set", "broken", "--resume", check=0)
    wait_for("what waited to be sent", lambda: cloud.json("hook", "list")[0]["sent"] == 1)


def test_mail(cloud, mail):
    mail.mails.clear()
    assert set_hook(cloud, "post", "mailto:ann@example.org", "task.failed") == ""
    assert cloud.vrun("-n", "zurich", "sh", "-c", "exit 3 # Zürich").returncode == 3
    got = wait_for("a mail", lambda: mail.mails and mail.mails[0])
    assert (got["from"], got["to"]) == ("cloud@example.org", ["ann@example.org"])
    m = email.message_from_bytes(got["text"])
    assert m["To"] == "<ann@example.org>" and m["Subject"].startswith("[virga] task.failed: zurich (failed)")
    text = base64.b64decode(m.get_payload()).decode()
    assert "Zürich" in text and '"status": 3' in text and "virga hook remove post" in text
    assert cloud.out("virga", "hook", "test", "post") == "the server has taken it"
    assert len(mail.mails) == 2


def test_only_servers_that_can_show_who_they_are(cloud, mail, tmp_path):
    trusted, stranger = make_cert(tmp_path, "trusted"), make_cert(tmp_path, "stranger")
    good, bad, post = Server(trusted), Server(stranger), MailServer(trusted)
    (tmp_path / "password").write_text("pass word\n")
    plain = (cloud.home / "config.yaml").read_text()
    (cloud.home / "config.yaml").write_text(f"""
heartbeat: 500ms
hooks: {{retry: 200ms, ca: {trusted[0]}}}
mail: {{server: "127.0.0.1:{post.server_address[1]}", from: c@example.org, tls: tls, ca: {trusted[0]}, user: me, password_file: {tmp_path / "password"}}}
""")
    try:
        cloud.virga("config", "reload", check=0)
        set_hook(cloud, "good", good.url + "/x", "task.ended")
        assert cloud.out("virga", "hook", "test", "good") == "the server has taken it"
        set_hook(cloud, "bad", bad.url + "/x", "task.ended")
        done = cloud.virga("hook", "test", "bad")
        assert done.returncode != 0 and b"certificate" in done.stderr and not bad.requests
        set_hook(cloud, "post", "mailto:ann@example.org", "task.ended")
        assert cloud.out("virga", "hook", "test", "post") == "the server has taken it"
        assert post.logins == [[b"me", b"pass word"]] and len(post.mails) == 1
        (cloud.home / "config.yaml").write_text((cloud.home / "config.yaml").read_text().replace("tls: tls", "tls: starttls"))
        cloud.virga("config", "reload", check=0)
        plain_port = f"127.0.0.1:{mail.server_address[1]}"
        text = re.sub(r'server: "[^"]*"', f'server: "{plain_port}"', (cloud.home / "config.yaml").read_text())
        (cloud.home / "config.yaml").write_text(text)
        cloud.virga("config", "reload", check=0)
        mail.logins.clear()
        done = cloud.virga("hook", "test", "post")  # a server that does not offer STARTTLS is told nothing
        assert done.returncode != 0 and not mail.logins, done
    finally:
        (cloud.home / "config.yaml").write_text(plain)
        cloud.virga("config", "reload", check=0)
        for server in (good, bad):
            server.close()
        post.shutdown()
        post.server_close()


def test_nodes_and_gpus_for_administrators(cloud, server):
    set_hook(cloud, "ops", server.url + "/ops", "node.ready,node.lost,gpu.fault", "--scope", "cloud")
    card = cloud.home / "node" / "fake-gpus" / "0"
    card.parent.mkdir(exist_ok=True)
    card.write_text("xid 79\n")
    cloud.virga("gpu", "top", check=0)  # somebody looks: it is seen at once
    (headers, m), = server.take("/ops")
    assert m["event"] == "gpu.fault" and m["data"]["index"] == 0 and m["data"]["text"] and m["data"]["node"]


def test_a_test_says_what_the_server_says(cloud, server):
    set_hook(cloud, "t", server.url + "/t", "task.ended")
    assert cloud.out("virga", "hook", "test", "t") == "the server has taken it"
    assert server.take("/t")[0][1]["event"] == "test"
    server.status = 404
    done = cloud.virga("hook", "test", "t")
    assert done.returncode != 0 and b"answered with status 404" in done.stderr
    server.close()
    done = cloud.virga("hook", "test", "t")
    assert done.returncode != 0 and b"connect" in done.stderr.lower()


@pytest.mark.parametrize("args, words", [
    (["x", "--url", "ftp://a/", "--event", "task.ended"], "no URL that a hook can have"),
    (["x", "--url", "https://", "--event", "task.ended"], "no URL"),
    (["x", "--url", "https://u:p@h/", "--event", "task.ended"], "no user and password"),
    (["x", "--url", "mailto:a@b,c@d", "--event", "task.ended"], "one address"),
    (["x", "--url", "https://h/", "--event", "task.end"], "did you mean 'task.ended'"),
    (["x", "--url", "https://h/"], "--event"),
    (["a b", "--url", "https://h/", "--event", "task.ended"], "no name for a hook"),
    (["x", "--url", "https://h/", "--event", "node.lost"], "--scope cloud"),
    (["x", "--url", "https://h/", "--event", "task.ended", "--scope", "project:p"], "not for you"),
])
def test_what_is_refused(cloud, args, words):
    done = cloud.virga("hook", "set", *args)
    assert done.returncode != 0 and words in done.stderr.decode(), done.stderr
    assert not cloud.json("hook", "list")


def test_a_secret_of_ones_own_and_changes(cloud, server):
    (cloud.work / "secret").write_text("sixteen letters and more\n")
    assert set_hook(cloud, "own", server.url + "/own", "task.ended", "--secret-file", str(cloud.work / "secret")) == ""
    cloud.virga("hook", "set", "own", "--url", server.url + "/moved", check=0)
    assert cloud.vrun("true").returncode == 0
    server.take("/moved")
    path, headers, body = server.requests[0]
    assert documented_verify()("sixteen letters and more", headers["Virga-Signature"], body)
    done = cloud.virga("hook", "remove", "nothing")
    assert done.returncode != 0 and b"no hook 'nothing'" in done.stderr
