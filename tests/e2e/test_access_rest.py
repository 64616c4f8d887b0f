"""The table of who may ask what (src/control/access.tbl), walked through REST: every path with every role and every scope of a token."""
import http.client
import json
import re

import pytest
from remote import token_for
from rest import rest_of
from virga import ROOT, Cloud

TABLE = {request.lower(): (who, scope) for request, who, scope in
         re.findall(r"^ACCESS\((\w+), (\w+), (\w+),", (ROOT / "src/control/access.tbl").read_text(), re.M)}
MAY = {"viewer": {"ANYBODY", "STRANGER"}, "member": {"ANYBODY", "STRANGER", "RUNNER"}, "lead": {"ANYBODY", "STRANGER", "RUNNER", "LEAD"},
       "admin": {"ANYBODY", "STRANGER", "RUNNER", "LEAD", "ADMIN"}}
# What a role may do at all, and not to this: refused by whose it is, which the last column of the table says.
BOUNDED = {("lead", "POST", "/users"), ("lead", "PUT", "/budgets/{name}"), ("lead", "DELETE", "/budgets/{name}")}


@pytest.fixture(scope="module")
def world():
    cloud = Cloud("web: 127.0.0.1:0\nlimits: {web_rate: 0}\n")
    cloud.up()
    try:
        cloud.virga("team", "add", "vision", check=0)
        tokens = {}
        for role in MAY:
            cloud.virga("user", "add", role, "--team", "vision", "--role", role, check=0)
            tokens[role] = token_for(cloud, role)
        for scope in ("read", "run", "secrets", "admin"):
            tokens["scope " + scope] = token_for(cloud, "admin", "--scope", scope)
        yield rest_of(cloud), tokens
    finally:
        cloud.down()
        cloud.kill_leftovers()
        cloud.remove()


def sample(schema, root):
    """The least that the description takes."""
    if "$ref" in schema:
        return sample(root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], root)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: sample(schema["properties"][name], root) for name in schema.get("required", [])}
    if kind == "array":
        return [sample(schema["items"], root)] if schema.get("minItems") or "items" in schema else []
    return {"string": "x1" if not schema.get("pattern", "").startswith("^[0-9a-f]") else "0123456789abcdef",
            "integer": max(1, schema.get("minimum", 1)), "boolean": True, "null": None}[kind]


def operations(root):
    for path, methods in root["paths"].items():
        for method, operation in methods.items():
            if isinstance(operation, dict) and operation.get("x-virga-request"):
                yield method.upper(), path, operation


def ask(rest, token, method, path, operation):
    """The status alone: some answers never end."""
    target = "/api/v1" + re.sub(r"\{index\}", "0", re.sub(r"\{id\}", "0123456789abcdef", path))
    target = re.sub(r"\{\w+\}", "nobody", target)
    body, headers = None, {"Authorization": f"Bearer {token}"}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content:
        body = sample(content["schema"], rest.description)
        body = json.dumps(body | {"schedule": "every 1h"} if path == "/schedules" else body)
        headers["Content-Type"] = "application/json"
    if path.endswith(("/attach", "/forward")):
        headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
        target += "?port=80"
    connection = http.client.HTTPSConnection(rest.host.hostname, rest.host.port, timeout=30, context=rest.tls)
    try:
        connection.request(method, target, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_path_asks_a_request_that_the_table_has(world):
    rest, _ = world
    found = {o["x-virga-request"] for _, _, o in operations(rest.description)}
    assert found - set(TABLE) == set()
    assert len(found) > 40


@pytest.mark.parametrize("role", MAY)
def test_each_role_through_rest(world, role):
    rest, tokens = world
    wrong = []
    for method, path, operation in operations(rest.description):
        who, _ = TABLE[operation["x-virga-request"]]
        status = ask(rest, tokens[role], method, path, operation)
        if (status == 403) != (who not in MAY[role]) and (role, method, path) not in BOUNDED:
            wrong.append((method, path, status, who))
    assert wrong == []


@pytest.mark.parametrize("scope", ["read", "run", "secrets", "admin"])
def test_each_scope_through_rest(world, scope):
    rest, tokens = world
    wrong = []
    for method, path, operation in operations(rest.description):
        _, need = TABLE[operation["x-virga-request"]]
        status = ask(rest, tokens["scope " + scope], method, path, operation)
        if need != "NONE" and (status == 403) != (need not in ("READ", scope.upper())):
            wrong.append((method, path, status, need))
    assert wrong == []


def sign_in(rest, token):
    """A browser's session that was begun with a token: its cookie."""
    answer = rest.raw("POST", "/api/v1/login", json.dumps({"token": token}), {"Content-Type": "application/json"})
    assert answer.status == 200, answer
    return next(c for c in answer.headers.get_all("Set-Cookie") if "HttpOnly" in c).split(";")[0]


def test_a_session_ends_with_the_token_that_it_was_begun_with(world):
    rest, tokens = world
    stranger = rest.__class__(rest.url, rest.ca, None, rest)
    made = rest.post("/tokens", {"user": "member", "ttl_usec": 3600 * 10**6, "scopes": ["run"]}, status=201).json
    cookie = sign_in(stranger, made["token"])
    me = stranger.raw("GET", "/api/v1/me", None, {"Cookie": cookie}).json
    assert me["user"] == "member" and me["acts"] == ["see-team", "run"]
    row = next(t for t in rest.get("/tokens")["tokens"] if t["name"] == f"browser {made['id']}")
    parent = next(t for t in rest.get("/tokens")["tokens"] if t["id"] == made["id"])
    assert row["expires_usec"] <= parent["expires_usec"] and row["scopes"] == ["run"]
    assert rest.call("DELETE", f"/tokens/{made['id']}").status == 204
    assert stranger.raw("GET", "/api/v1/me", None, {"Cookie": cookie}).status == 401
    assert not any(made["id"] in t["name"] for t in rest.get("/tokens")["tokens"])


def test_nobody_is_nobody(world):  # the last: who guesses is made to wait, whoever he is
    rest, _ = world
    for method, path, operation in operations(rest.description):
        if TABLE[operation["x-virga-request"]][0] != "STRANGER":
            status = ask(rest, "vgt_no", method, path, operation)
            assert status in (401, 429), (method, path, status)  # who tries too many is made to wait
