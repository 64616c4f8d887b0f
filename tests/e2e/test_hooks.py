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
from remote import Remote, token_for
from virga import ROOT, Cloud, read_pid, wait_for

CONFIG = """
heartbeat: 500ms
hooks: {retry: 200ms, give_up: 1h}
mail: {server: "%s", from: cloud@example.org, tls: none}
"""


class Server:
    """Takes what is sent and answers with `status`; `requests` are (path, headers, body)."""

    def __init__(self, cert=None):
        self.requests, self.status, self.headers, self.lock = [], 200, {}, threading.Lock()
        self.gate = threading.Event()  # it answers when this is set
        self.gate.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers), body))
                    status = outer.status
                outer.gate.wait(30)
                self.send_response(status)
                for header in outer.headers.items():
                    self.send_header(*header)
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
    """SMTP. With a certificate it speaks TLS from the first byte, or, `starttls`, after being asked for it and then only; with a `password` it
    takes nothing from who has not shown it. `clear` is what it heard before TLS."""
    allow_reuse_address = daemon_threads = True

    def __init__(self, cert=None, starttls=False, password=None):
        self.mails, self.logins, self.clear, self.password, self.strangers = [], [], [], password, ()
        self.upgrade = tls_of(cert) if starttls else None
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, *lines):
                self.wfile.write(b"".join(line.encode() + b"\r\n" for line in lines))

            def handle(self):
                self.tls, self.known, self.mail = not outer.upgrade, not outer.password, None
                self.say("220 ready")
                while line := self.rfile.readline():  # STARTTLS makes another file of it
                    assert line.endswith(b"\r\n"), line
                    if not self.tls:
                        outer.clear.append(line)
                    word = line.split()[0].upper().decode() if line.split() else ""
                    if word == "QUIT":
                        return self.say("221 bye")
                    getattr(self, f"on_{word}", lambda _: self.say("502 what?"))(line)

            def on_EHLO(self, _):
                self.say("250-here", "250 AUTH PLAIN" if self.tls else "250 STARTTLS")

            def on_STARTTLS(self, _):
                if self.tls:
                    return self.say("503 no")
                self.say("220 go on")
                self.wfile.flush()
                self.request = outer.upgrade.wrap_socket(self.request, server_side=True)
                self.setup()
                self.tls = True

            def on_AUTH(self, line):
                words = line.split()
                if not self.tls:
                    return self.say("530 not in the clear")
                if len(words) < 3:
                    self.say("334 ")
                    words.append(self.rfile.readline().strip())
                login = base64.b64decode(words[2]).split(b"\0")[1:]
                outer.logins.append(login)
                self.known = outer.password in (None, login[1].decode())
                self.say("235 welcome" if self.known else "535 the password is wrong")

            def on_MAIL(self, line):
                if not self.tls or not self.known:
                    return self.say("530 who are you?")
                self.mail = {"from": re.search(rb"<(.*)>", line)[1].decode(), "to": []}
                self.say("250 fine")

            def on_RCPT(self, line):
                to = re.search(rb"<(.*)>", line)[1].decode()
                if to in outer.strangers:
                    return self.say("550 nobody here is called so")
                self.mail["to"].append(to)
                self.say("250 fine")

            def on_DATA(self, _):
                self.say("354 go on")
                text = b""
                while (more := self.rfile.readline()) != b".\r\n":
                    text += more[1:] if more.startswith(b".") else more
                outer.mails.append({**self.mail, "text": text})
                self.say("250 taken")

        super().__init__(("127.0.0.1", 0), Handler)
        if cert and not starttls:
            self.socket = tls_of(cert).wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that does not trust it goes without a word

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def close(self):
        self.shutdown()
        self.server_close()


@pytest.fixture(scope="module")
def mail():
    server = MailServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def cloud(mail):
    cloud = Cloud(CONFIG % mail.address)
    cloud.up("--gpus", "fake:1")
    yield cloud
    cloud.remove()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def configure(cloud):
    """Another configuration for the rest of a test."""
    path = cloud.home / "config.yaml"
    plain = path.read_text()

    def change(text):
        path.write_text("heartbeat: 500ms\n" + text)
        cloud.virga("config", "reload", check=0)

    yield change
    path.write_text(plain)
    cloud.virga("config", "reload", check=0)


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


def test_long_failure_pauses_with_an_audit_line(cloud, server, configure):
    configure("hooks: {retry: 200ms, pause_after: 1s}\n")
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
mail: {{server: "{post.address}", from: c@example.org, tls: tls, ca: {trusted[0]}, user: me, password_file: {tmp_path / "password"}}}
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
        text = re.sub(r'server: "[^"]*"', f'server: "{mail.address}"', (cloud.home / "config.yaml").read_text())
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
        post.close()


def test_mail_by_starttls_with_a_password(cloud, configure, tmp_path):
    """Nothing but the wish for TLS is said in the clear; a mail that the server did not take comes when it does."""
    cert, password = make_cert(tmp_path, "post"), tmp_path / "password"
    post = MailServer(cert, starttls=True, password="pass word")
    password.write_text("wrong\n")
    conf = (f"hooks: {{retry: 200ms}}\nmail: {{server: '{post.address}', from: c@example.org, tls: starttls, user: me, "
            f"password_file: {password}, ca: {cert[0]}}}\n")
    try:
        configure(conf)
        set_hook(cloud, "post", "mailto:ann@example.org", "task.ended")
        done = cloud.virga("hook", "test", "post")
        assert done.returncode != 0 and b"denied" in done.stderr, done.stderr
        assert cloud.vrun("-n", "posted", "sh", "-c", "true; : '.' . a line with a dot").returncode == 0
        wait_for("a try that fails", lambda: cloud.json("hook", "list")[0]["last_error"])
        assert not post.mails
        password.write_text("pass word\n")
        text = wait_for("the mail", lambda: post.mails and post.mails[0])["text"]
        assert b"posted" in email.message_from_bytes(text)["Subject"].encode()
        assert post.logins[-1] == [b"me", b"pass word"] and len(post.mails) == 1
        assert {line.split()[0].upper() for line in post.clear} == {b"EHLO", b"STARTTLS"}
        post.strangers = ("ann@example.org",)
        done = cloud.virga("hook", "test", "post")
        assert done.returncode != 0 and b"550" in done.stderr, done.stderr
        other = make_cert(tmp_path, "other")[0]  # who cannot show who it is is not told the password
        configure(conf.replace(str(cert[0]), str(other)))
        seen = len(post.logins)
        done = cloud.virga("hook", "test", "post")
        assert done.returncode != 0 and b"certificate" in done.stderr and len(post.logins) == seen, done.stderr
    finally:
        post.close()


def test_a_redirection_is_not_followed(cloud, server):
    """It could lead anywhere, with what was meant for one server."""
    server.status, server.headers = 307, {"Location": server.url + "/elsewhere"}
    set_hook(cloud, "moved", server.url + "/here", "task.ended")
    done = cloud.virga("hook", "test", "moved")
    assert done.returncode != 0 and b"answered with status 307" in done.stderr
    assert cloud.vrun("true").returncode == 0
    server.take("/here", 3)
    server.status = 200
    wait_for("it to be taken", lambda: cloud.json("hook", "list")[0]["sent"] == 1)
    assert {path for path, _, _ in server.requests} == {"/here"}


def test_a_slow_server_holds_up_its_own_hook_only(cloud, server):
    slow = Server()
    slow.gate.clear()
    try:
        set_hook(cloud, "slow", slow.url + "/s", "task.ended")
        set_hook(cloud, "quick", server.url + "/q", "task.ended")
        for name in ("first", "second"):
            assert cloud.vrun("-n", name, "true").returncode == 0
        assert [m["data"]["name"] for _, m in server.take("/q", 2)] == ["first", "second"]
        assert [m["data"]["name"] for _, m in slow.take("/s")] == ["first"], "one at a time"
        slow.gate.set()
        assert [m["data"]["name"] for _, m in slow.take("/s", 2)] == ["first", "second"]
    finally:
        slow.gate.set()
        slow.close()


def test_members_hooks_reach_nothing_inside(cloud, server, configure, tmp_path):
    cloud.virga("user", "add", "mia", "--role", "member", check=0)
    mia = Remote(cloud, tmp_path / "mia", token_for(cloud, "mia"))
    hosts = ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]", "169.254.169.254", "[fe80::1]",
             "[fd00:ec2::254]", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1"]
    for host in hosts:
        mia.virga("hook", "set", "in", "--url", f"http://{host}:{server.port}/in", "--event", "task.ended", check=0)
        said = mia.refused("hook", "test", "in")
        assert "is not a public one" in said, (host, said)
    mia.virga("hook", "set", "in", "--url", server.url + "/in", "--event", "task.ended", check=0)
    task = mia.virga("task", "list", "-o", "json").returncode  # she is who she is
    assert task == 0 and not server.requests
    configure("hooks: {allow: [127.0.0.0/8]}\n")
    assert mia.virga("hook", "test", "in", check=0).stdout == b"the server has taken it\n"
    assert server.requests[0][0] == "/in"
    mia.virga("hook", "remove", "in", check=0)


def test_the_documented_check_in_the_shell(cloud, server, tmp_path):
    text = (ROOT / "docs" / "hooks.md").read_text()
    (tmp_path / "check.sh").write_text(re.search(r"```sh\n(.*?)```", text, re.S)[1])
    secret = set_hook(cloud, "sh", server.url + "/sh", "task.ended")
    cloud.virga("hook", "test", "sh", check=0)
    _, headers, body = server.requests[0]
    (tmp_path / "secret").write_text(secret + "\n")

    def check(signature, body):
        return subprocess.run(["sh", tmp_path / "check.sh", tmp_path / "secret", signature], input=body, capture_output=True, check=False).returncode

    good = headers["Virga-Signature"]
    assert check(good, body) == 0
    old = int(re.match(r"t=(\d+)", good)[1]) - 3600
    stale = f"t={old},v1=" + hmac.new(secret.encode(), b"%d." % old + body, hashlib.sha256).hexdigest()
    bad = [good[:-1] + ("0" if good[-1] != "0" else "1"), stale, "", "t=,v1=", "v1=" + good.split("v1=")[1], "t=$(id),v1=0", good + ",v1=0"]
    assert [check(signature, body) for signature in bad] == [1] * len(bad)
    assert check(good, body + b" ") == 1 and check(good, body + b"\n") == 1 and check(good, b"") == 1


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
