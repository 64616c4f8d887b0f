"""When somebody's rights end or shrink, so does what was begun with them: streams, terminals, sessions of browsers, and the log says who did it."""
import json

import pytest
from rest import rest_of
from test_live import Events, expect, shell
from test_rest import cookie_of
from virga import noted, wait_for
from websocket import WebSocket

CONFIG = """
heartbeat: 500ms
limits:
  web_rate: 0
"""


@pytest.fixture(scope="module")
def rest(cloud):
    return rest_of(cloud)


def person(cloud, rest, name, *more):
    cloud.virga("user", "add", name, *more, check=0)
    return rest.as_(cloud.out("virga", "token", "create", "--user", name))


def browser_of(rest, token):
    browser = rest.as_(None)
    browser.cookie = cookie_of(browser.call("POST", "/login", {"token": token}, status=200))
    return browser


def terminal(rest, task, **headers):
    auth = f"Cookie: {rest.cookie}" if rest.cookie else f"Authorization: Bearer {rest.token}"
    return WebSocket((rest.host.hostname, rest.host.port), f"/api/v1/tasks/{task}/attach?observe=1", rest.tls,
                     [auth, *(f"{k}: {v}" for k, v in headers.items())])


def ends(ws):
    """Whatever still comes, it comes to an end."""
    while True:
        try:
            if ws.recv() is None:
                return True
        except (EOFError, ConnectionError):
            return True


def over(stream):
    """What the stream says before it ends."""
    said = []
    while (event := stream.next()):
        said.append(event)
    return said


def test_signing_out_ends_what_the_browser_has_open(cloud, rest):
    one, other = browser_of(rest, rest.token), browser_of(rest, rest.token)
    assert one.cookie != other.cookie, "every sign-in is a session of its own"
    before = noted(cloud)[0]["seq"]
    with shell(rest) as task, Events(one, "/events", "?topics=tasks") as mine, Events(other, "/events", "?topics=tasks") as theirs:
        wait_for("the shell", lambda: rest.get(f"/tasks/{task}")["state"] == "running")
        ws = terminal(one, task)
        one.call("POST", "/logout", status=204)
        over(mine)
        assert ends(ws)
        one.call("GET", "/me", status=401)
        other.call("GET", "/me", status=200)
        new = rest.post("/tasks", {"argv": ["true"]}, status=201).json["id"]
        theirs.until(lambda name, data: name == "task" and data["id"] == new)
    left = [e for e in noted(cloud, after=before) if e["what"].startswith("logout")]
    assert len(left) == 1 and left[0]["who"] == "root" and left[0]["from"] == "127.0.0.1"
    assert rest.get("/me")["user"] == "root", "the token that began it goes on"


def test_a_sign_in_is_noted_once_and_old_cookies_are_not_taken_over(cloud, rest):
    before = noted(cloud)[0]["seq"]
    fixed = rest.as_(None)
    fixed.cookie = "virga_session=vgt_0000000000000000_chosen_by_somebody_else"
    answer = fixed.call("POST", "/login", {"token": rest.token}, status=200)
    assert "chosen" not in answer.headers["Set-Cookie"]
    said = [e["what"] for e in noted(cloud, after=before)]
    assert len(said) == 1 and said[0].startswith("login (token) of user root: token "), said
    foreign = rest.as_(None)
    assert foreign.call("POST", "/login", {"token": rest.token}, headers={"Origin": "https://evil.example"}).status == 403


def test_who_is_removed_is_out_everywhere(cloud, rest):
    ann = person(cloud, rest, "ann", "--uid", "4101")
    browser = browser_of(rest, ann.token)
    with shell(rest) as task, Events(ann, "/events", "?topics=tasks") as by_token, Events(browser, "/events", "?topics=tasks") as by_cookie:
        wait_for("the shell", lambda: rest.get(f"/tasks/{task}")["state"] == "running")
        own = ann.post("/tasks", {"argv": ["sleep", "1000"]}, status=201).json["id"]
        wait_for("her task", lambda: rest.get(f"/tasks/{own}")["state"] == "running")
        screens = [terminal(browser, own), terminal(ann, own)]
        cloud.virga("user", "rm", "ann", check=0)
        over(by_token)
        over(by_cookie)
        assert all(ends(ws) for ws in screens)
        ann.call("GET", "/me", status=401)
        browser.call("GET", "/me", status=401)
        rest.call("POST", f"/tasks/{own}/cancel", {"grace_usec": 1})


def test_a_smaller_role_ends_what_it_may_not_see(cloud, rest):
    cloud.virga("team", "add", "red", check=0)
    cloud.virga("team", "add", "blue", check=0)
    bob = person(cloud, rest, "bob", "--team", "red", "--uid", "4102")
    eve = person(cloud, rest, "eve", "--team", "blue", "--role", "admin")
    task = bob.post("/tasks", {"argv": ["sh", "-c", "echo secret; exec sleep 1000"]}, status=201).json["id"]
    with Events(eve, f"/tasks/{task}/logs", "?follow=1") as logs, Events(eve, "/events", "?topics=tasks&all_users=1") as events:
        assert logs.until(lambda name, data: name == "log")["text"] == "secret\n"
        ws = terminal(eve, task)
        expect(ws, b"secret")
        cloud.virga("user", "set", "eve", "--role", "lead", check=0)
        said = over(logs)
        assert not any(name == "log" for name, _ in said)
        assert ends(ws)
        bob.call("POST", f"/tasks/{task}/cancel", {"grace_usec": 1})
        wait_for("bob's to end", lambda: bob.get(f"/tasks/{task}")["state"] == "cancelled")
        own = eve.post("/tasks", {"argv": ["true"]}, status=201).json["id"]
        seen = []
        events.until(lambda name, data: seen.append((data["id"], data["state"])) or data["id"] == own)
        assert (task, "cancelled") not in seen
    assert json.dumps(eve.call("GET", f"/tasks/{task}", status=404).json).count("bob") == 0


def test_a_rotated_token_takes_its_sessions_along(cloud, rest):
    tim = person(cloud, rest, "tim")
    browser = browser_of(rest, tim.token)
    with Events(browser, "/events", "?topics=tasks") as events, Events(tim, "/events", "?topics=tasks") as own:
        new = tim.call("POST", "/tokens", {"replaces": tim.token.split("_")[1]}, status=201).json["token"]
        over(events)
        over(own)
    browser.call("GET", "/me", status=401)
    tim.call("GET", "/me", status=401)
    assert rest.as_(new).get("/me")["user"] == "tim"


def test_guessing_does_not_fill_the_log(make_cloud):
    cloud = make_cloud()
    cloud.up()
    rest = rest_of(cloud)
    before = noted(cloud)[0]["seq"]
    kind, key, secret, *more = rest.token.split("_")
    wrong = rest.as_("_".join([kind, key, ("1" if secret[0] == "0" else "0") + secret[1:], *more]))
    for _ in range(20):
        wrong.call("GET", "/me", status=401)
    new = noted(cloud, after=before)
    assert len(new) == 1 and (new[0]["who"], new[0]["from"]) == ("", "127.0.0.1")
    assert new[0]["what"].startswith("login refused (token): the token is not valid on this cloud"), new
    assert rest.token not in json.dumps(new) and wrong.token not in json.dumps(new)
    assert cloud.down().returncode == 0
    cloud.up()
    wait_for("the control plane to be back", lambda: cloud.virga("status").returncode == 0)
    more = [e["what"] for e in noted(cloud, "times more", after=before)]
    assert len(more) == 1 and more[0].startswith("login refused (token): 19 times more in "), more
