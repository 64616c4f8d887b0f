"""REST: every path of the table is called, each answer is what the served description says, and what people and programs rely on: signing in,
pages, filters, keys, tags, problems with the sentences of the command line."""
import base64
import http.client
import http.server
import json
import re
import subprocess
import threading

import pytest

import oci
from conftest import close_cloud
from rest import Mismatch, fits, rest_of
from simulated import Driver
from virga import BIN, ROOT, Cloud, wait_for

@pytest.fixture(scope="module")
def cloud():
    c = Cloud("heartbeat: 500ms\npools:\n  - name: default\n  - name: parts\n    class: shared\n  - name: open\n    network: host\n")
    driver = Driver(c)
    try:
        c.up("--gpus", "fake:2")
        wait_for("the cards", lambda: len(c.json("gpu", "list")) == 2)
    except BaseException:
        c.remove()
        driver.close()
        raise
    yield c
    driver.close()
    close_cloud(c)


@pytest.fixture(scope="module")
def rest(cloud):
    return rest_of(cloud)


def done(rest, task):
    return rest.get(f"/tasks/{task}/wait", query={"timeout": 60})


def quiet(rest):
    """Nothing runs that would change what is compared."""
    wait_for("everything to end", lambda: not rest.get("/tasks", query={"state": "queued,starting,running", "flat": 1})["tasks"])


# ------------------------------------------------------------------ everything, once


def walk_sign_in(rest, cloud):
    guest = rest.as_(None)
    guest.call("GET", "/openapi.json", status=200)
    guest.call("GET", "/login/methods", status=200)
    assert guest.call("GET", "/me", status=401).headers["WWW-Authenticate"].startswith("Bearer")
    assert guest.call("POST", "/login", {"token": rest.token}, status=200).json["user"] == rest.get("/me")["user"]
    guest.call("GET", "/login/oidc", status=404)  # no provider is configured here; test_oidc.py has one
    guest.call("GET", "/login/oidc/callback", query={"code": "x", "state": "y"}, status=401)
    for path in ("/login/device", "/login/device/poll"):
        assert guest.call("POST", path, {"id": "x"} if path.endswith("poll") else {}).status == 404
    browser = rest.as_(None)
    browser.cookie = cookie_of(browser.call("POST", "/login", {"token": rest.token}, status=200))
    browser.call("POST", "/logout", status=204)
    browser.call("GET", "/me", status=401)


def walk_tasks(rest, cloud):
    task = rest.post("/tasks", {"argv": ["sh", "-c", "echo out; echo err >&2"], "name": "once", "labels": {"k": "v"}}, status=201).json["id"]
    assert done(rest, task)["state"] == "succeeded"
    wait_for("the attempt's row", lambda: [(a["attempt"], a["how"]) for a in rest.get(f"/tasks/{task}/attempts")["attempts"]] == [(1, "ended")])
    for path in ("", "/why", "/attempts", "/series", "/logs"):
        rest.call("GET", f"/tasks/{task}{path}", status=200)
    assert [t["id"] for t in rest.get("/tasks", query={"label": "k=v"})["tasks"]] == [task]
    rest.call("POST", "/tasks/estimate", {"argv": ["true"], "want": {"cpu_milli": 1000}}, status=200)
    long = rest.post("/tasks", {"argv": ["sleep", "1000"], "labels": {"kind": "long"}}, status=201).json["id"]
    rest.call("POST", f"/tasks/{long}/cancel", {"grace_usec": 0}, status=204)
    assert done(rest, long)["state"] == "cancelled"
    rest.post("/tasks", {"argv": ["sleep", "1000"], "labels": {"kind": "long"}}, status=201)
    assert rest.post("/tasks/cancel", {"matching": {"label": {"kind": "long"}}}, status=200).json == {"cancelled": 1}
    share = rest.post("/tasks", {"argv": ["sleep", "1000"], "pool": "parts", "want": {"gpu_milli": 250}}, status=201).json["id"]
    wait_for("the share to run", lambda: rest.get(f"/tasks/{share}")["state"] == "running")
    assert rest.call("PATCH", f"/tasks/{share}/share", {"gpu_milli": 500}, status=200).json["want"]["gpu_milli"] == 500
    assert rest.get("/gpus")["gpus"][0]["holders"][0]["task"] == share
    rest.call("POST", f"/tasks/{share}/cancel", {"signal": 9}, status=204)
    rest.get("/queue", query={"limit": 5})
    rest.post("/tasks", {"argv": ["true"], "session": "here", "session_keep_usec": 3600 * 10**6}, status=201)
    wait_for("the session", lambda: rest.get("/sessions")["sessions"])
    rest.call("DELETE", "/sessions/here", status=204)
    made = rest.post("/schedules", {"argv": ["true"], "schedule": "every 30m"}, status=201)
    assert made.headers["Location"] == f"/api/v1/schedules/{made.json['id']}"
    assert [s["id"] for s in rest.get("/schedules")["schedules"]] == [made.json["id"]]
    rest.call("DELETE", f"/schedules/{made.json['id']}", status=204)


def walk_cloud(rest, cloud):
    for path in ("status", "pools", "nodes", "gpus"):
        rest.get(f"/{path}")
    name = rest.get("/nodes")["nodes"][0]["name"]
    rest.get(f"/nodes/{name}")
    rest.get(f"/nodes/{name}/series", query={"points": 10})
    assert rest.call("PATCH", f"/nodes/{name}", {"state": "draining"}, status=200).json["state"] == "draining"
    assert rest.call("PATCH", f"/nodes/{name}", {"state": "ready"}, status=200).json["state"] == "ready"
    rest.call("PATCH", f"/gpus/{name}/1", {"state": "drained", "text": "a test"}, status=204)
    assert {g["index"]: g["state"] for g in rest.get("/gpus", query={"node": name})["gpus"]}[1] == "drained"
    rest.call("PATCH", f"/gpus/{name}/1", {"state": "ready"}, status=204)
    assert rest.post("/nodes/invite", {"labels": {"rack": "3"}}, status=201).json["token"].startswith("vgj_")
    rest.call("DELETE", "/nodes/nobody", status=404)
    rest.post("/config/reload", status=204)


def walk_environments(rest, cloud):
    program = (BIN / "vrun").read_bytes()  # linked whole: the image needs nothing else
    image = oci.Image([oci.layer({"bin": None, "bin/tool": (program, 0o755)})], {"Env": ["A=b"], "Entrypoint": ["/bin/tool"]})
    registry = oci.Registry({"lab/made": image}, login="ann:pass:word")
    config = {"auths": {registry.host: {"auth": base64.b64encode(b"ann:pass:word").decode()}}}
    rest.call("PUT", "/secrets/docker", {"value": json.dumps(config)}, status=204)
    wanted = {"image": f"{registry.host}/lab/made:v1", "name": "made", "pool": "open"}
    try:
        refused = rest.post("/environments", wanted, status=202).json["id"]
        end = done(rest, refused)
        assert end["state"] == "failed", end
        said = rest.call("GET", f"/tasks/{refused}/logs", status=200).body
        assert b"gives no token" in said, (said, end["status"], end["reason"], end["pool"])
        imported = [rest.call("POST", "/environments", {**wanted, "login": "docker"}, headers={"Idempotency-Key": "made"}) for _ in range(2)]
        task = imported[0].json["id"]
        assert [(a.status, a.headers["Location"]) for a in imported] == [(s, f"/api/v1/tasks/{task}") for s in (202, 200)]
        assert done(rest, task)["state"] == "succeeded", rest.call("GET", f"/tasks/{task}/logs").body
        assert rest.call("GET", f"/tasks/{task}/logs", status=200).body == b"made@1\n"
    finally:
        registry.close()
    rest.call("DELETE", "/secrets/docker", status=204)
    for wrong in ("/etc/passwd", "--help", "../x", "a b", "x" * 201):
        rest.call("POST", "/environments", {"image": wrong}, status=400)
    assert rest.get("/environments")["environments"][0]["name"] == "made"
    assert rest.get("/environments/made%401")["version"] == 1
    rest.call("POST", "/environments/made/share", {"team": "main"}, status=204)
    rest.call("POST", "/environments/made/unshare", {"team": "main"}, status=204)
    rest.call("POST", "/tasks", {"argv": ["x"], "image": "not:there"}, status=404)
    rest.call("POST", "/tasks", {"argv": ["x"], "environment": "nobody", "image": "made"}, status=400)
    task = rest.post("/tasks", {"argv": ["--help"], "environment": "made@1"}, status=201).json
    assert task["spec"]["env"]["A"] == "b" and task["spec"]["environment"].endswith("//made@1")
    assert done(rest, task["id"])["state"] == "succeeded"
    assert b"Usage: " in rest.call("GET", f"/tasks/{task['id']}/logs", status=200).body
    assert rest.post("/tasks", task["spec"], status=201).json["argv"] == task["argv"] == ["/bin/tool", "--help"]
    wait_for("both to end", lambda: not rest.get("/tasks", query={"state": "queued,starting,running"})["tasks"])
    rest.call("DELETE", "/environments/made", status=204)
    rest.call("GET", "/environments/made", status=404)


def walk_people(rest, cloud):
    assert rest.post("/orgs", {"name": "acme"}, status=201).json["name"] == "acme"
    assert rest.post("/teams", {"name": "vision", "org": "acme"}, status=201).json["org"] == "acme"
    assert rest.call("PATCH", "/teams/vision", {"org": "main"}, status=200).json["org"] == "main"
    made = rest.post("/users", {"name": "ann", "team": "vision", "role": "lead", "email": "ann@acme.org"}, status=201).json
    assert (made["team"], made["role"], made["email"]) == ("vision", "lead", "ann@acme.org")
    assert rest.call("PATCH", "/users/ann", {"role": "member"}, status=200).json["role"] == "member"
    for path in ("/users", "/users/ann", "/teams", "/teams/vision", "/orgs", "/orgs/acme", "/tokens", "/audit"):
        rest.get(path)
    token = rest.post("/tokens", {"user": "ann", "name": "laptop", "ttl_usec": 3600 * 10**6, "scopes": ["read"]}, status=201).json
    assert rest.as_(token["token"]).get("/me")["user"] == "ann"
    rest.call("DELETE", f"/tokens/{token['id']}", status=204)
    rest.as_(token["token"]).call("GET", "/me", status=401)
    verified = rest.get("/audit/verify")
    assert verified["broken"] is None
    assert rest.get("/audit/verify", query={"head": verified["head"]})["broken"] is None
    for wrong in ("", "12", "xy" * 32, "AB" * 32):
        rest.call("GET", "/audit/verify", query={"head": wrong}, status=400)
    assert rest.get("/audit/verify", query={"head": "00" * 32})["broken"], "the log never held that"
    rest.call("DELETE", "/users/ann", status=204)
    rest.call("DELETE", "/teams/vision", status=204)
    rest.call("DELETE", "/orgs/acme", status=204)


def walk_secrets(rest, cloud):
    rest.call("PUT", "/secrets/KEY", {"value": "s3cret"}, status=204)
    assert [s["name"] for s in rest.get("/secrets")["secrets"]] == ["KEY"]
    task = rest.post("/tasks", {"argv": ["sh", "-c", "echo ${#KEY}"], "secrets": ["KEY"]}, status=201).json["id"]
    done(rest, task)
    assert rest.call("GET", f"/tasks/{task}/logs", status=200).body == b"6\n"
    rest.post("/secrets/rotate", status=204)
    rest.call("DELETE", "/secrets/KEY", status=204)


def walk_money(rest, cloud):
    assert rest.post("/prices", {"pool": "default", "cpu_hour_micro": 1_000_000, "currency": "USD"}, status=201).json["prices"]
    rest.get("/prices", query={"history": 1})
    rest.get("/cost", query={"by": "user,day"})
    assert rest.call("GET", "/cost", query={"by": "user"}, headers={"Accept": "text/csv"}, status=200).headers["Content-Type"].startswith("text/csv")
    rest.post("/ledger/credit", {"user": "root", "amount_micro": 5_000_000, "text": "a test"}, status=204)
    rest.get("/ledger", query={"limit": 10})
    made = rest.call("PUT", "/budgets/mine", {"scope": "cloud", "limit_micro": 10**9, "period": "month", "policy": "warn"}, status=200).json
    assert made["limit_micro"] == 10**9
    rest.get("/budgets")
    rest.get("/budgets/mine")
    rest.call("DELETE", "/budgets/mine", status=204)


class Taker(http.server.BaseHTTPRequestHandler):
    """A chat's server, which takes whatever it is told."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


def walk_hooks(rest, cloud):
    chat = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=chat.serve_forever, daemon=True).start()
    rest.call("PUT", "/hooks/chat", {"url": f"http://127.0.0.1:{chat.server_address[1]}/x", "events": ["task.failed"]}, status=200)
    rest.get("/hooks")
    rest.get("/hooks/chat")
    rest.call("POST", "/hooks/chat/test", status=204)
    chat.shutdown()
    chat.server_close()
    rest.call("POST", "/hooks/chat/test", status=409)  # it is not there any more
    assert "mail.server" in rest.call("PUT", "/hooks/mail", {"url": "mailto:ann@acme.org", "events": ["task.failed"]}, status=409).json["detail"]
    rest.call("DELETE", "/hooks/chat", status=204)


def begun(rest, path, headers=(), query=""):
    """The head of an answer that does not end by itself, and a line of it; test_live.py has what comes then."""
    connection = http.client.HTTPSConnection(rest.host.hostname, rest.host.port, timeout=30, context=rest.tls)
    connection.request("GET", f"/api/v1{path}{query}", headers={"Authorization": f"Bearer {rest.token}", **dict(headers)})
    answer = connection.getresponse()
    rest.called.setdefault(("GET", rest.operation("GET", path)), set()).add(answer.status)
    line = answer.readline() if answer.status == 200 else b""
    connection.close()
    return answer, line


def walk_live(rest, cloud):
    for wrong in ("topics=weather", "topic=nodes", "label=novalue&limit=3"):
        rest.call("GET", f"/events?{wrong}", status=400)
    answer, line = begun(rest, "/events", query="?topics=nodes,status&topics=gpus&label=a%3Db&all_users=1")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream") and line
    serve = "import socket as s; l = s.create_server(('127.0.0.1', 8000)); print('up', flush=True); c = l.accept()[0]; c.recv(1)"
    task = rest.post("/tasks", {"argv": ["python3", "-c", serve], "tty": {"rows": 24, "cols": 80}}, status=201).json["id"]
    wait_for("the task to listen", lambda: b"up" in rest.call("GET", f"/tasks/{task}/logs", status=200).body)
    answer, line = begun(rest, f"/tasks/{task}/logs", query="?follow=1")
    assert answer.headers["Content-Type"].startswith("text/event-stream") and line
    socket = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert begun(rest, f"/tasks/{task}/attach", socket, "?rows=24&cols=80")[0].status == 101
    assert begun(rest, f"/tasks/{task}/forward", socket, "?port=8000")[0].status == 101
    for path in ("attach", "forward"):
        assert rest.raw("GET", f"/api/v1/tasks/{task}/{path}").status in (400, 426), "without the upgrade it is no WebSocket"
    rest.post(f"/tasks/{task}/cancel", {"grace_usec": 0})


def test_every_route_answers_as_it_is_described(rest, cloud):
    for walk in (walk_sign_in, walk_tasks, walk_live, walk_cloud, walk_environments, walk_people, walk_secrets, walk_money, walk_hooks):
        walk(rest, cloud)
    described = {(m.upper(), path) for path, methods in rest.description["paths"].items() for m in methods}
    elsewhere = {("GET", "/login/oidc"), ("GET", "/login/oidc/callback"), ("POST", "/login/device"), ("POST", "/login/device/poll"),
                 ("DELETE", "/nodes/{name}")}  # refused above; done in test_oidc.py, test_hosts.py
    assert sorted(described - set(rest.called)) == [], "routes that no test calls"
    good = {key for key, statuses in rest.called.items() if any(s < 400 for s in statuses)}
    assert sorted(described - good - elsewhere) == [], "routes that never answered well"


def test_the_validator_finds_what_does_not_fit(rest):
    task = rest.post("/tasks", {"argv": ["true"]}, status=201).json
    schema = {"$ref": "#/components/schemas/Task"}
    fits(schema, task, rest.description)
    for change in ({"id": "xyz"}, {"attempt": "1"}, {"surprise": 1}, {"labels": {"a": 1}}, {"want": {"cpu_milli": 1}}, {"argv": None}):
        with pytest.raises(Mismatch):
            fits(schema, {**task, **change}, rest.description)
    with pytest.raises(Mismatch):
        fits(schema, {k: v for k, v in task.items() if k != "state"}, rest.description)


# ------------------------------------------------------------------ signing in


def cookie_of(answer):
    return answer.headers["Set-Cookie"].split(";")[0]


def test_a_browser_signs_in_by_a_cookie_that_only_its_own_pages_use(rest, cloud):
    answer = rest.as_(None).call("POST", "/login", {"token": rest.token}, status=200)
    attributes = {a.strip().split("=")[0] for a in answer.headers["Set-Cookie"].split(";")[1:]}
    assert {"HttpOnly", "Secure", "SameSite", "Path", "Max-Age"} <= attributes
    assert "SameSite=Strict" in answer.headers["Set-Cookie"] and "Path=/api" in answer.headers["Set-Cookie"]
    browser = rest.as_(None)
    browser.cookie = cookie_of(answer)
    assert browser.get("/me")["user"] == rest.get("/me")["user"]
    foreign, own = {"Origin": "https://evil.example"}, {"Origin": rest.url}
    assert browser.call("POST", "/tasks", {"argv": ["true"]}, headers=foreign, status=403).json["code"] == "FORBIDDEN"
    browser.call("POST", "/tasks", {"argv": ["true"]}, headers=own, status=201)
    assert any(t["name"].startswith("browser") and t["expires_usec"] for t in rest.get("/tokens")["tokens"])
    assert browser.cookie.split("=")[1].encode() not in (cloud.home / "control" / "state.db").read_bytes()
    browser.call("POST", "/logout", headers=own, status=204)
    browser.call("GET", "/me", status=401)


def test_a_code_of_the_dashboard_command_signs_in_once(rest, cloud):
    link = cloud.out("virga", "dashboard", "--print") if b"--print" in cloud.virga("dashboard", "--help").stdout else \
        cloud.out("virga", "dashboard")
    code = re.search(r"#\w+=(\S+)", link).group(1)
    guest = rest.as_(None)
    assert guest.call("POST", "/login", {"code": code}, status=200).json["user"] == rest.get("/me")["user"]
    assert guest.call("POST", "/login", {"code": code}, status=401).json["code"] == "UNAUTHENTICATED"
    guest.call("POST", "/login", {"code": "nonsense"}, status=401)
    guest.call("POST", "/login", {}, status=400)
    guest.call("POST", "/login", {"code": code, "token": "x"}, status=400)


def test_a_program_makes_such_a_code_too(rest):
    code = rest.post("/tokens", {"once": True}, status=201).json["token"]
    assert rest.as_(None).call("POST", "/login", {"code": code}, status=200).json["user"] == rest.get("/me")["user"]
    rest.as_(None).call("POST", "/login", {"code": code}, status=401)


def test_a_scoped_token_bounds_its_browser_too(rest):
    token = rest.post("/tokens", {"name": "looks", "scopes": ["read"]}, status=201).json["token"]
    looker = rest.as_(token)
    looker.call("POST", "/tasks", {"argv": ["true"]}, status=403)
    looker.cookie = cookie_of(rest.as_(None).call("POST", "/login", {"token": token}, status=200))
    looker.token = None
    looker.get("/tasks")
    looker.call("POST", "/tasks", {"argv": ["true"]}, status=403)


# ------------------------------------------------------------------ tasks


def test_a_task_can_be_submitted_again_as_it_was(rest):
    body = {"argv": ["sh", "-c", "echo $A$B"], "env": {"A": "1"}, "labels": {"x": "y"}, "want": {"cpu_milli": 500}, "retries": 2,
            "sweep": [{"name": "B", "value": ["2", "3"]}], "priority": 60}
    first = rest.post("/tasks", body, status=201).json
    spec = rest.get(f"/tasks/{first['id']}")["spec"]
    second = rest.post("/tasks", spec, status=201).json
    assert second["id"] != first["id"] and second["members"] == first["members"] == 2
    again = rest.get(f"/tasks/{second['id']}")["spec"]
    assert again == spec and again["env"]["A"] == "1" and again["env"]["PATH"]
    assert done(rest, second["id"])["state"] == "succeeded"
    assert sorted(rest.call("GET", f"/tasks/{second['id']}/logs", status=200).body.split()) == [b"12", b"13"]


def test_variables_of_a_task_are_its_owners(rest, cloud):
    cloud.virga("user", "add", "eve", "--role", "admin", check=0)
    task = rest.post("/tasks", {"argv": ["true"], "env": {"PASSWORD": "hush"}}, status=201).json
    assert task["spec"]["env"]["PASSWORD"] == "hush"
    eve = rest.as_(cloud.out("virga", "token", "create", "--user", "eve"))
    seen = eve.call("GET", f"/tasks/{task['id']}", status=200)
    assert seen.json["spec"]["env"] == {} and b"hush" not in seen.body


def test_a_key_submits_once(rest):
    key = {"Idempotency-Key": "only-once"}
    first = rest.post("/tasks", {"argv": ["true"]}, headers=key, status=201)
    assert first.headers["Location"] == f"/api/v1/tasks/{first.json['id']}"
    again = rest.post("/tasks", {"argv": ["true"]}, headers=key, status=200)
    assert again.json["id"] == first.json["id"]
    rest.post("/tasks", {"argv": ["false"]}, headers=key, status=409)
    rest.post("/tasks", {"argv": ["true"], "key": "another"}, headers=key, status=400)
    done(rest, first.json["id"])
    assert rest.post("/tasks", {"argv": ["true"]}, headers=key, status=200).json["id"] == first.json["id"]


def test_pages_follow_each_other(rest):
    group = rest.post("/tasks", {"argv": ["true"], "shards": 25, "name": "paged"}, status=201).json["id"]
    done(rest, group)
    seen, before = [], None
    while True:
        query = {"of": group, "flat": 1, "limit": 10, **({"before": before} if before else {})}
        page = rest.get("/tasks", query=query)
        assert len(page["tasks"]) <= 10
        seen += [t["id"] for t in page["tasks"]]
        before = page["next"]
        if not before:
            break
    assert len(seen) == len(set(seen)) == 25


def test_output_as_text_and_as_records(rest):
    task = rest.post("/tasks", {"argv": ["sh", "-c", "printf 'a\\377b\\n'; echo e >&2; head -c 600000 /dev/zero | tr '\\0' x"]}, status=201).json["id"]
    done(rest, task)
    text = rest.call("GET", f"/tasks/{task}/logs", status=200)
    assert text.body.startswith(b"a\xffb\n") and len(text.body) == 600006 and text.headers["Content-Type"].startswith("text/plain")
    records = [json.loads(line) for line in
               rest.call("GET", f"/tasks/{task}/logs", headers={"Accept": "application/x-ndjson"}, status=200).body.splitlines()]
    assert {r["stream"] for r in records} == {"stdout", "stderr"}
    assert "".join(r["text"] for r in records if r["stream"] == "stderr") == "e\n"
    assert len(rest.call("GET", f"/tasks/{task}/logs", query={"tail_bytes": 1000}, status=200).body) < 200000
    rest.call("GET", "/tasks/feedfacefeedface/logs", status=404)


def test_waiting_ends_with_the_task_or_with_the_time(rest):
    task = rest.post("/tasks", {"argv": ["sleep", "1000"]}, status=201).json["id"]
    assert rest.get(f"/tasks/{task}/wait", query={"timeout": 0})["state"] in ("queued", "starting", "running")
    rest.post(f"/tasks/{task}/cancel", {"grace_usec": 0}, status=204)
    assert rest.get(f"/tasks/{task}/wait")["state"] == "cancelled"


# ------------------------------------------------------------------ HTTP


def test_problems_say_what_the_command_line_says(rest, cloud):
    problem = rest.call("GET", "/tasks/nosuch", status=404)
    assert problem.headers["Content-Type"] == "application/problem+json"
    said = cloud.virga("task", "get", "nosuch").stderr.decode()
    assert problem.json["detail"] in said and problem.json["code"] == "NOT_FOUND"
    for body, sentence in [(b"{", "not JSON"), (b'{"argv": ["a"], "argv": ["b"]}', "not JSON"), (b"[]", "JSON object"),
                           (b'{"argv": ["a"], "colour": 1}', "'colour' is not known"), (b'{"argv": "a"}', "must be a list"),
                           (b'{"argv": [], "shards": -1}', "whole number"), (b"", "'argv' is missing")]:
        assert sentence in rest.call("POST", "/tasks", body, status=400).json["detail"]
    assert "'colour' is not known" in rest.call("GET", "/tasks", query={"colour": "red"}, status=400).json["detail"]
    rest.call("GET", "/pools", query={"x": 1}, status=400)


def test_methods_that_a_path_has(rest):
    quiet(rest)
    assert rest.raw("DELETE", "/api/v1/me").status == 405
    assert rest.raw("GET", "/api/v1/tasks/estimate").status == 405  # not a task of that name
    assert rest.raw("TRACE", "/api/v1/me").status == 405
    assert {m.strip() for m in rest.raw("DELETE", "/api/v1/tasks").headers["Allow"].split(",")} == {"OPTIONS", "GET", "HEAD", "POST"}
    options = rest.raw("OPTIONS", "/api/v1/users/ann")
    assert options.status == 204 and "PATCH" in options.headers["Allow"]
    head, get = rest.raw("HEAD", "/api/v1/pools"), rest.raw("GET", "/api/v1/pools")
    assert head.status == 200 and head.body == b"" and head.headers["Content-Length"] == str(len(get.body))
    for path in ("/api/v1", "/api/v1/", "/api/v1/nope", "/api/v2/me", "/api/v1/tasks/", "/api/v1//tasks", "/api/v1/tasks/%00", "/api/"):
        assert rest.raw("GET", path).status in (400, 404), path


def test_tags_save_an_answer_and_guard_a_change(rest):
    quiet(rest)
    first = rest.call("GET", "/pools", status=200)
    assert rest.call("GET", "/pools", headers={"If-None-Match": first.headers["ETag"]}, status=304).body == b""
    rest.call("GET", "/pools", headers={"If-None-Match": '"other"'}, status=200)
    rest.post("/users", {"name": "bob"}, status=201)
    tag = rest.call("GET", "/users/bob", status=200).headers["ETag"]
    rest.call("PATCH", "/users/bob", {"full_name": "Bob"}, headers={"If-Match": tag}, status=200)
    assert rest.call("PATCH", "/users/bob", {"full_name": "Rob"}, headers={"If-Match": tag}, status=412).json["code"] == "CHANGED"
    assert rest.get("/users/bob")["full_name"] == "Bob"
    now = rest.call("GET", "/users/bob", status=200).headers["ETag"]
    for given, status in ((tag, 412), (f"W/{now}", 412), (f'"x", {tag}', 412), (now[1:-1], 412), (f'"x",{now}', 200), ("*", 200)):
        rest.call("PATCH", "/users/bob", {"full_name": "Bob"}, headers={"If-Match": given}, status=status)
    rest.call("DELETE", "/users/bob", headers={"If-Match": tag}, status=412)
    rest.call("DELETE", "/users/bob", headers={"If-Match": now}, status=204)
    rest.call("DELETE", "/users/bob", headers={"If-Match": now}, status=404)
    assert rest.call("GET", "/cost", status=200).headers["Vary"] == "Accept"


def test_a_guard_that_a_path_does_not_have_is_refused(rest):
    described = [(m.upper(), p, o) for p, ms in rest.description["paths"].items() for m, o in ms.items() if m != "get"]
    told = {"If-Match": '"x"', "Idempotency-Key": "x"}
    for header, value in told.items():
        for method, path, operation in described:
            takes = any(p["name"] == header for p in operation.get("parameters", []))
            if takes or (header == "Idempotency-Key" and method != "POST") or not operation.get("security", True):
                continue
            answer = rest.call(method, re.sub(r"\{\w+\}", "0", path), headers={header: value}, status=400)
            assert header in answer.json["detail"], path
    assert sum(p["name"] == "If-Match" for _, _, o in described for p in o.get("parameters", [])) >= 9


def test_the_command_line_shows_the_same_objects(rest, cloud):
    quiet(rest)
    assert {p["name"]: p for p in rest.get("/pools")["pools"]} == {p["name"]: p for p in cloud.json("pool", "list")}
    task = rest.post("/tasks", {"argv": ["true"], "name": "same"}, status=201).json["id"]
    done(rest, task)
    shown = rest.get(f"/tasks/{task}")
    shown.pop("spec")
    assert shown == cloud.task(task)


# ------------------------------------------------------------------ the documentation


def test_the_examples_of_the_documentation_run(cloud, rest, tmp_path):
    """docs/api.md is executed as it stands: blocks marked `sh`, in one shell, with the names that it asks the reader to set."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.M | re.S)
    assert len(blocks) >= 5
    script = "set -e\n" + "\n".join(blocks)
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=cloud.env, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout.decode() + ran.stderr.decode()


# ------------------------------------------------------------------ last: its address has to wait afterwards


def test_who_guesses_tokens_is_slowed_down_and_nobody_else(rest):
    guest = rest.as_("vgt_0123456789abcdef_0123456789abcdef0123456789abcdef_0123456789abcdef0123456789abcdef")
    answers = [guest.call("GET", "/me") for _ in range(60)]
    assert {a.status for a in answers} == {401, 429}
    assert int(next(a for a in answers if a.status == 429).headers["Retry-After"]) >= 1
    rest.get("/me")  # from the same address, with a token that is good
