"""An identity provider that lies: forged and foreign ID tokens, keys that change or are too many, addresses of other sites, silence. What a good
one does is in test_oidc.py; here each lie is told once to a browser's login, and a true answer before and after shows that it is the lie."""
import base64
import hashlib
import hmac
import http.server
import json
import subprocess
import threading
import time
import urllib.parse

import pytest
from test_oidc import api, free_port
from virga import Cloud, noted, wait_for


def b64(data):
    return base64.urlsafe_b64encode(data if isinstance(data, bytes) else json.dumps(data).encode()).rstrip(b"=").decode()


class Key:
    """An RSA key; openssl does the sums."""

    def __init__(self, folder, kid):
        self.kid, self.path = kid, folder / f"{kid}.pem"
        subprocess.run(["openssl", "genrsa", "-out", self.path, "2048"], check=True, stderr=subprocess.DEVNULL)
        text = subprocess.run(["openssl", "rsa", "-in", self.path, "-noout", "-modulus"], check=True, stdout=subprocess.PIPE).stdout
        self.n = bytes.fromhex(text.decode().split("=")[1].strip())
        self.public = subprocess.run(["openssl", "rsa", "-in", self.path, "-pubout"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def jwk(self):
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.kid, "n": b64(self.n), "e": "AQAB"}

    def sign(self, text):
        return subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.path], input=text, check=True, stdout=subprocess.PIPE).stdout


class Liar:
    """Its pages as data; `answer` makes the ID token from what was asked."""

    def __init__(self, folder):
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.key, self.other = Key(folder, "one"), Key(folder, "two")
        self.keys = {"keys": [self.key.jwk()]}
        self.calls_itself = self.issuer
        self.asked, self.codes, self.hold, self.server = [], [], None, None
        self.token = None

    def start(self):
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def say(self, data):
                raw = data if isinstance(data, bytes) else json.dumps(data).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self):
                liar.asked.append(self.path)
                self.say(liar.keys if self.path == "/jwks" else
                         {"issuer": liar.calls_itself, "authorization_endpoint": liar.issuer + "/auth", "token_endpoint": liar.issuer + "/token",
                          "jwks_uri": liar.issuer + "/jwks"})

            def do_POST(self):
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                liar.asked.append(self.path)
                if liar.hold:
                    liar.hold.wait(60)
                code = form["code"][0]
                used = code in liar.codes
                liar.codes.append(code)
                self.say({"error": "invalid_grant"} if used else {"access_token": "x", "token_type": "Bearer", "id_token": liar.token})

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def make(self, nonce, claims=None, header=None, key=None, sign=None, without=()):
        now = int(time.time())
        head = {"alg": "RS256", "kid": (key or self.key).kid, "typ": "JWT"} | (header or {})
        body = {"iss": self.issuer, "aud": "virga", "sub": "ann", "preferred_username": "ann", "iat": now, "exp": now + 300, "nonce": nonce} | (claims or {})
        text = f"{b64(head)}.{b64({k: v for k, v in body.items() if k not in without})}"
        return text + "." + b64(sign(text.encode()) if sign else (key or self.key).sign(text.encode()))


class World:
    def __init__(self, cloud, liar, url):
        self.cloud, self.liar, self.url = cloud, liar, url
        self.codes = 0

    def begin(self, query=""):
        status, headers, body = api(self.cloud, self.url, "/api/v1/login/oidc" + query)
        if status != 302:
            return status, json.loads(body)["detail"], None
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(headers["Location"]).query)
        return headers["Set-Cookie"].split(";")[0], asked["state"][0], asked["nonce"][0]

    def end(self, begun, state, token, code=None):
        """(status, where to or why not, the session's cookie)"""
        self.liar.token = token
        self.codes += 1
        query = urllib.parse.urlencode({"code": code or f"code-{self.codes}", "state": state})
        status, headers, body = api(self.cloud, self.url, "/api/v1/login/oidc/callback?" + query, begun)
        cookies = [c.split(";")[0] for c in headers.get_all("Set-Cookie") or [] if "Max-Age=0" not in c and "HttpOnly" in c]
        return status, headers["Location"] if status == 302 else json.loads(body)["detail"], cookies[0] if cookies else None

    def login(self, **lie):
        begun, state, nonce = self.begin()
        return self.end(begun, state, self.liar.make(lie.pop("nonce", nonce), **lie))

    def is_true(self):
        status, where, cookie = self.login()
        assert (status, where) == (302, "/"), where
        assert json.loads(api(self.cloud, self.url, "/api/v1/me", cookie)[2])["user"] == "ann"
        return cookie


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    liar, web = Liar(tmp_path_factory.mktemp("keys")), free_port()
    cloud = Cloud(f"web: 127.0.0.1:{web}\noidc:\n  issuer: {liar.issuer}\n  client_id: virga\n  auto_create: on\n")
    liar.calls_itself = "http://127.0.0.1:1"
    liar.start()
    cloud.up()
    try:
        yield World(cloud, liar, f"https://127.0.0.1:{web}")
    finally:
        liar.stop()
        cloud.down()
        cloud.kill_leftovers()
        cloud.remove()


def test_a_provider_under_another_name_is_not_believed(world):
    status, why, _ = world.begin()
    assert status == 503 and "calls itself 'http://127.0.0.1:1'" in why and "oidc.issuer" in why
    assert noted(world.cloud)[0]["what"].startswith("login refused (provider): the identity provider calls itself")
    world.liar.calls_itself = world.liar.issuer
    world.is_true()


def test_forged_and_foreign_tokens_are_refused(world):
    liar, now = world.liar, int(time.time())
    world.is_true()
    _, _, earlier = world.begin()
    before = noted(world.cloud)[0]["seq"]
    secret = liar.key.public
    lies = {
        "signature is wrong": [dict(key=liar.other, header={"kid": "one"})],
        "signed in a way that is not taken": [
            dict(header={"alg": "none"}, sign=lambda text: b""),
            dict(header={"alg": "None"}, sign=lambda text: b""),
            dict(header={"alg": "HS256"}, sign=lambda text: hmac.new(secret, text, hashlib.sha256).digest()),
            dict(header={"alg": "HS256"}, sign=lambda text: hmac.new(liar.key.n, text, hashlib.sha256).digest()),
            dict(header={"crit": ["exp"]})],
        "of another issuer": [dict(claims={"iss": "https://evil.example"}), dict(claims={"iss": liar.issuer + "/"}), dict(without=("iss",))],
        "for another client": [dict(claims={"aud": "another"}), dict(claims={"aud": ["another"]}), dict(without=("aud",))],
        "made for another client": [dict(claims={"aud": ["virga", "another"], "azp": "another"}), dict(claims={"aud": ["virga", "another"]})],
        "has expired": [dict(claims={"exp": now - 3600}), dict(without=("exp",)), dict(claims={"exp": "soon"})],
        "not valid yet": [dict(claims={"nbf": now + 3600})],
        "answers another question": [dict(nonce=earlier), dict(without=("nonce",)), dict(nonce="")],
        "whom it is about": [dict(claims={"sub": ""}), dict(without=("sub",))],
    }
    told = 0
    for why, kinds in lies.items():
        for lie in kinds:
            status, said, cookie = world.login(**lie)
            assert status == 401 and why in said and cookie is None, (lie, status, said)
            told += 1
    begun, state, _ = world.begin()
    assert world.end(begun, state, "not.a.token")[0] == 401
    refused = noted(world.cloud, after=before)
    assert told > 15 and len(refused) <= 1, "the first is told, perhaps in the first test; the others are counted"
    world.is_true()
    new = noted(world.cloud, "login (provider)", after=before)
    assert len(new) == 1 and new[0]["what"].startswith("login (provider) of user ann: token ") and new[0]["from"] == "127.0.0.1"


def test_an_answer_is_for_one_login_of_one_browser_once(world):
    begun, state, nonce = world.begin()
    token = world.liar.make(nonce)
    assert world.end(begun, state, token, code="once")[0] == 302
    assert world.end(begun, state, token, code="once")[0] == 401, "all of it again"
    begun, state, nonce = world.begin()
    status, why, _ = world.end(begun, state, world.liar.make(nonce), code="once")
    assert status == 401 and "refuses the login" in why, "a code that was used, in another login"
    mine, theirs = world.begin(), world.begin()
    assert world.end(mine[0], theirs[1], world.liar.make(mine[2]))[0] == 401, "another's state"
    assert world.end(theirs[0], mine[1], world.liar.make(theirs[2]))[0] == 401, "another's browser"
    asked = len(world.liar.asked)
    assert world.end("virga_login=|/", "", "")[0] == 401 and len(world.liar.asked) == asked, "who has begun nothing costs the provider nothing"


def test_nobody_is_sent_to_another_site(world):
    for where in ("//evil.example", "https://evil.example", "/\\evil.example", "/x%0d%0aSet-Cookie:a=b", "/" + "x" * 600):
        begun, state, nonce = world.begin("?next=" + urllib.parse.quote(where, safe="%"))
        assert world.end(begun, state, world.liar.make(nonce))[:2] == (302, "/"), where
        begun, state, nonce = world.begin()
        status, to, _ = world.end(begun.split("|")[0] + "|" + where, state, world.liar.make(nonce))  # who writes the cookie himself
        assert status == 401 or to == "/" or (to == where and where.startswith("/x%0d")), where  # a path, as it stands
    begun, state, nonce = world.begin("?next=/tasks")
    assert world.end(begun, state, world.liar.make(nonce))[:2] == (302, "/tasks")


def test_keys_change_and_are_not_asked_for_at_every_lie(world):
    liar = world.liar
    since, before = time.monotonic(), liar.asked.count("/jwks")
    for i in range(10):
        status, why, _ = world.login(header={"kid": f"made-up-{i}"})
        assert status == 401 and ("does not show" in why or "none of its keys" in why), why
    assert liar.asked.count("/jwks") - before <= 1 + (time.monotonic() - since) / 5 + 1
    liar.keys = {"keys": [liar.other.jwk()], "padding": "x" * (1 << 20)}
    said = wait_for("the keys to be asked for", lambda: [w for w in [world.login(key=liar.other)[1]] if "does not answer" in w])
    assert "bytes" in said[0], said
    assert world.login()[0] == 302, "what is known goes on"
    liar.keys = {"keys": [liar.other.jwk()]}
    wait_for("the new key to be asked for", lambda: world.login(key=liar.other)[0] == 302)
    assert world.login()[0] == 401, "the old key is not shown any more"
    liar.key = liar.other


def test_a_slow_or_silent_provider_holds_nobody_else_up(world):
    cookie = world.is_true()
    world.liar.hold = threading.Event()
    begun, state, nonce = world.begin()
    got = []
    waiting = threading.Thread(target=lambda: got.append(world.end(begun, state, world.liar.make(nonce))))
    asked = world.liar.asked.count("/token")
    waiting.start()
    wait_for("the provider to be asked", lambda: world.liar.asked.count("/token") > asked)
    assert api(world.cloud, world.url, "/api/v1/me", cookie)[0] == 200 and not got
    assert world.cloud.virga("status").returncode == 0
    world.liar.hold.set()
    waiting.join(30)
    world.liar.hold = None
    assert got[0][0] == 302
    begun, state, nonce = world.begin()
    world.liar.stop()
    status, why, _ = world.end(begun, state, world.liar.make(nonce))
    assert status == 503 and "does not answer" in why and "token" in why
    assert api(world.cloud, world.url, "/api/v1/me", cookie)[0] == 200, "sessions go on"
    world.liar.start()
    world.is_true()
