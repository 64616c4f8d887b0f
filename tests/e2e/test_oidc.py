"""Logging in by a real identity provider (npm's oidc-provider): a code that a person confirms, a browser that is sent there and back,
keys that change, and whoever is not let in."""
import html
import http.cookiejar
import json
import os
import re
import socket
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import npm
import pytest
from virga import Cloud, wait_for


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Provider:
    def __init__(self, folder, redirect):
        self.port = free_port()
        self.folder, self.redirect, self.process = folder, redirect, None

    def start(self, kind="RS256", word="first"):
        self.process = subprocess.Popen(["node", "provider.mjs", str(self.port), self.redirect, kind, word], cwd=self.folder,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {"NODE_ENV": "test"})
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None


class Stop(urllib.request.HTTPRedirectHandler):
    """Follows the provider, and stops where the cloud's own address comes."""

    def __init__(self, own):
        self.own = own

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if newurl.startswith(self.own):
            raise Back(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Back(Exception):
    pass


class Browser:
    """As much of one as the provider's own pages need: cookies, forms, redirections."""

    def __init__(self, own):
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar), Stop(own))

    def open(self, url, data=None):
        with self.opener.open(url, data and urllib.parse.urlencode(data).encode(), timeout=30) as answer:
            return answer.geturl(), answer.read().decode()

    def walk(self, url, person):
        """Answers whatever form comes until there is none: who one is, whether one agrees, whether that is the device."""
        at, page = self.open(url)
        for _ in range(8):
            form = re.search(r"<form[^>]*action=\"([^\"]*)\"[^>]*>(.*?)</form>", page, re.S)
            if not form:
                return page
            fields = dict(re.findall(r"<input[^>]*name=\"([^\"]+)\"[^>]*value=\"([^\"]*)\"", form[2]))
            fields = {k: html.unescape(v) for k, v in fields.items()}
            if "name=\"login\"" in form[2]:
                fields |= {"login": person, "password": "x"}
            at, page = self.open(urllib.parse.urljoin(at, html.unescape(form[1])), fields)
        return page


@pytest.fixture(scope="module")
def setup():
    folder = npm.tools("oidc-provider")
    web = free_port()
    provider = Provider(folder, f"https://127.0.0.1:{web}/api/v1/login/oidc/callback")
    cloud = Cloud()
    secret = cloud.home / "client-secret"
    secret.write_text("a secret / with + signs\n")
    (cloud.home / "config.yaml").write_text(f"""
web: 127.0.0.1:{web}
oidc:
  issuer: http://127.0.0.1:{provider.port}
  client_id: virga
  client_secret_file: {secret}
  name: Example
  scopes: [openid, profile, email, groups]
  group_claim: groups
  teams: {{vision-people: vision}}
  roles: {{chiefs: admin}}
  auto_create: on
  token_ttl: 2h
""")
    provider.start()
    cloud.up()
    cloud.virga("team", "add", "vision", check=0)
    try:
        yield cloud, provider, f"https://127.0.0.1:{web}"
    finally:
        provider.stop()
        cloud.down()
        cloud.kill_leftovers()
        cloud.remove()


def device_login(cloud, url, person, home):
    """`virga login` in one terminal, a browser beside it."""
    home.mkdir(exist_ok=True)
    env = {k: v for k, v in cloud.env.items() if not k.startswith("VIRGA_")} | {"VIRGA_HOME": str(home)}
    ca = cloud.home / "control" / "ca.crt"
    login = cloud.popen(["virga", "login", url, "--ca", str(ca)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = login.stderr.readline().decode()
    link = re.search(r"http://\S+", first)
    if link:
        code = re.search(r"the code (\S+)", login.stderr.readline().decode())[1]
        page = Browser(url).walk(link[0], person)
        assert code and ("success" in page.lower() or "continue" in page.lower()), page
    out, err = login.communicate(timeout=60)
    return login.returncode, first + err.decode(), env, out.decode()


def me(cloud, env):
    return json.loads(cloud.run(["virga", "user", "me", "-o", "json"], env=env, check=0).stdout)


def test_a_person_confirms_a_code_and_is_logged_in(setup, tmp_path):
    cloud, _, url = setup
    status, err, env, out = device_login(cloud, url, "ann", tmp_path / "ann")
    assert status == 0, err
    assert "logged in to 127.0.0.1:" in out
    who = me(cloud, env)
    assert (who["user"], who["team"], who["role"], who["full_name"], who["email"]) == ("ann", "vision", "member", "Ann Lee", "ann@example.org")
    assert cloud.run(["vrun", "echo", "in"], env=env, check=0).stdout == b"in\n"
    token = next(t for t in json.loads(cloud.run(["virga", "token", "list", "-o", "json"], env=env, check=0).stdout))
    assert token["expires_usec"] - token["created_usec"] == 2 * 3600 * 10**6
    rows = json.loads(cloud.out("virga", "audit", "list", "-o", "json"))["audit"]
    assert any(r["what"] == "user ann added to team vision as member, by the identity provider" and r["from"] == "127.0.0.1" for r in rows)
    row = next(u for u in json.loads(cloud.out("virga", "user", "list", "-o", "json")) if u["name"] == "ann")
    assert row["oidc"] is True


def api(cloud, url, path, cookie=None):
    trust = ssl.create_default_context(cafile=str(cloud.home / "control" / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), NoRedirect())
    request = urllib.request.Request(url + path, headers={"Cookie": cookie} if cookie else {})
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args):
        return None


def code_login(cloud, url, person):
    status, headers, _ = api(cloud, url, "/api/v1/login/oidc?next=/tasks")
    assert status == 302
    begun = headers["Set-Cookie"].split(";")[0]
    try:
        page = Browser(url).walk(headers["Location"], person)
    except Back as back:
        return begun, str(back)[len(url):]
    raise AssertionError(page)


def test_a_browser_is_sent_there_and_back(setup):
    cloud, _, url = setup
    assert json.loads(api(cloud, url, "/api/v1/login/methods")[2])["provider"] == "Example"
    begun, back = code_login(cloud, url, "bob")
    status, headers, body = api(cloud, url, back, begun)
    assert (status, headers["Location"]) == (302, "/tasks"), body
    cookie = next(c for c in headers.get_all("Set-Cookie") if "HttpOnly" in c).split(";")[0]
    who = json.loads(api(cloud, url, "/api/v1/me", cookie)[2])
    assert (who["user"], who["team"], who["role"]) == ("bob", "main", "member")
    assert api(cloud, url, back, begun)[0] == 401, "it is used once"
    begun, back = code_login(cloud, url, "bob")
    assert api(cloud, url, re.sub(r"state=[^&]*", "state=another", back), begun)[0] == 401
    assert api(cloud, url, back, begun)[0] == 401, "a wrong answer uses it up"
    begun, back = code_login(cloud, url, "bob")
    other, _ = code_login(cloud, url, "bob")
    assert api(cloud, url, back, other)[0] == 401, "another browser's login"
    assert api(cloud, url, back)[0] == 401, "no login of this browser"


def test_a_name_alone_makes_nobody_an_administrator(setup, tmp_path):
    cloud, _, url = setup
    status, err, _, _ = device_login(cloud, url, "eve", tmp_path / "eve")
    assert status != 0 and "'root' belongs to another user" in err
    assert me(cloud, cloud.env)["user"] == "root"
    cloud.virga("user", "add", "tim", "--role", "viewer", check=0)
    status, err, _, _ = device_login(cloud, url, "tim", tmp_path / "tim")
    assert status != 0 and "--email" in err
    cloud.virga("user", "set", "tim", "--email", "Tim@Example.org", check=0)
    status, err, env, _ = device_login(cloud, url, "tim", tmp_path / "tim")
    assert status == 0, err
    assert me(cloud, env)["role"] == "admin", "as his groups say"
    cloud.virga("user", "set", "tim", "--disable", check=0)
    status, err, _, _ = device_login(cloud, url, "tim", tmp_path / "tim")
    assert status != 0 and "disabled" in err


def test_new_keys_are_found_and_a_provider_that_is_away_is_said(setup, tmp_path):
    cloud, provider, url = setup
    provider.stop()
    for kind in ("ES256", "EdDSA"):
        provider.start(kind, "second")
        wait_for("the new key to be asked for", lambda: device_login(cloud, url, "ann", tmp_path / "ann")[0] == 0, 60)
        provider.stop()
    status, err, _, _ = device_login(cloud, url, "ann", tmp_path / "ann")
    assert status != 0 and "the identity provider does not answer" in err and err.count("\n") == 1
    assert cloud.virga("status").returncode == 0
    provider.start()
