"""REST under whatever somebody may send, made from the description that the cloud serves: inputs that fit and inputs that do not, in paths,
queries, headers and bodies. Nothing is answered with 5xx, every answer fits its schema, what does not fit is refused, and the control plane
stays the same process. VIRGA_TEST_LONG=1 asks much more, and schemathesis too where it can be had."""
import json
import os
import random
import subprocess
import urllib.parse
import venv

import pytest

from conftest import close_cloud
from rest import rest_of
from virga import LONG, Cloud, WAIT_S

SEED = int(os.environ.get("VIRGA_TEST_SEED", "1"))
ROUNDS = 1000 if LONG else 60  # of each operation
TEXTS = ["", " ", "a", "main", "default", "root", "0", "-1", "true", "null", "../..", "a/b", "%", "%00", "\u0000", "ä€😀", "\u202e", "x" * 300, "{}", "[]",
         "' OR 1=1 --", "<script>", "a=b", "a,b", "\r\nX: y", "\ufffd", "9" * 40, "1e999", "NaN", "vgt_0_0_0"]
NUMBERS = [0, 1, -1, 2, 7, 64, 65, 255, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30]
NOT_HERE = {"/events", "/tasks/{id}/attach", "/tasks/{id}/forward"}  # they do not end by themselves: test_live.py


@pytest.fixture(scope="module")
def cloud():
    c = Cloud("limits: {web_rate: 0}\n")
    try:
        c.up()
    except BaseException:
        c.remove()
        raise
    yield c
    close_cloud(c)


class Maker:
    """Values for schemas. A wrong one is surely wrong: it differs in type, range, or a member that is not known."""

    def __init__(self, root, seed):
        self.root, self.random = root, random.Random(seed)

    def resolve(self, schema):
        while "$ref" in schema:
            schema = self.root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def kind(self, schema):
        kinds = schema.get("type", "string")
        return kinds if isinstance(kinds, str) else next(k for k in kinds if k != "null")

    def text(self, schema):
        if "enum" in schema:
            return self.random.choice([w for w in schema["enum"] if w is not None])
        text = self.random.choice(TEXTS).replace("\u0000", "")
        text = text[:schema.get("maxLength", 1 << 20)]
        return text.ljust(schema.get("minLength", 0), "x")

    def number(self, schema):
        fit = [n for n in NUMBERS if schema.get("minimum", 0) <= n <= schema.get("maximum", 2**63 - 1)]
        return self.random.choice(fit)

    def right(self, schema, depth=0):
        schema = self.resolve(schema)
        if "anyOf" in schema:
            return self.right(self.random.choice(schema["anyOf"]), depth)
        if isinstance(schema.get("type"), list) and "null" in schema["type"] and self.random.random() < 0.2:
            return None
        kind = self.kind(schema)
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            return [self.right(schema.get("items", {}), depth + 1) for _ in range(self.random.randrange(4))]
        return {"string": self.text, "integer": self.number, "boolean": lambda _: self.random.random() < 0.5, "null": lambda _: None}[kind](schema)

    def object(self, schema, depth):
        made = {}
        for name, one in schema.get("properties", {}).items():
            if name in schema.get("required", []) or self.random.random() < (0.3 if depth else 0.25):
                made[name] = self.right(one, depth + 1)
        if isinstance(schema.get("additionalProperties"), dict):
            made.update({self.random.choice(["a", "b.c", "Ä"]): self.right(schema["additionalProperties"], depth + 1)})
        return made

    def wrong_value(self, schema):
        schema = self.resolve(schema)
        if "anyOf" in schema:
            return 1.5
        kind = self.kind(schema)
        if "enum" in schema:
            return "none-of-them"
        if kind == "integer":
            return self.random.choice(["1", 1.5, True, [], schema.get("minimum", 0) - 1, schema.get("maximum", 2**63 - 1) + 1])
        return self.random.choice({"string": [1, [], {}, True], "boolean": ["yes", 1, []], "array": [{}, "a", 3], "object": [[], "a", 3]}[kind])

    def wrong(self, schema):
        """A body that surely does not fit, as bytes."""
        schema = self.resolve(schema)
        body = self.right(schema)
        how = self.random.randrange(6)
        names = list(schema.get("properties", {}))
        if how == 0 or not names:
            body["unheard_of"] = self.right({"type": "string"})
        elif how == 1 and schema.get("required"):
            body.pop(self.random.choice(schema["required"]))
        elif how == 2:
            return self.random.choice([b"", b"{", b"nonsense", b"[]", b"3", b'"a"', b"null", b"\xff\xfe", b'{"a":NaN}', b"[" * 3000,
                                       json.dumps(body).encode()[:-1], json.dumps(body).encode() + b"}"]) or b"{"
        else:
            name = self.random.choice(names)
            body[name] = self.wrong_value(schema["properties"][name])
        return json.dumps(body).encode()


def safe(body):
    """Nothing is run that could do something: the command's name alone is ours."""
    if isinstance(body, dict) and "argv" in body:
        body["argv"] = ["true", *body["argv"]]
        body["schedule"] = None if body.get("schedule") == "" else body.get("schedule")
    return body


def path_of(template, maker, things):
    parts = []
    for part in template.split("/"):
        if part.startswith("{"):
            known = things.get(part[1:-1], []) + things.get(template.split("/")[1], [])
            text = maker.random.choice(known) if known and maker.random.random() < 0.5 else maker.random.choice(TEXTS[1:])
            part = urllib.parse.quote(text.replace("\u0000", "") or "x", safe="")
        parts.append(part)
    return "/".join(parts)


def query_of(operation, maker):
    """Pairs, and whether they surely do not fit."""
    pairs, wrong = [], False
    for p in operation.get("parameters", []):
        if p["in"] != "query" or p["name"] in ("follow", "timeout") or maker.random.random() < 0.6:
            continue
        schema = p["schema"]
        if maker.random.random() < 0.15 and maker.kind(schema) == "integer":
            pairs.append((p["name"], maker.random.choice(["x", "1.5", "--1", "9" * 30])))
            wrong = True
            continue
        value = maker.right(schema)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                pairs.append((p["name"], {True: "true", False: "false"}[one] if isinstance(one, bool) else str(one)))
    if maker.random.random() < 0.1:
        pairs.append(("unheard_of", "1"))
        wrong = True
    return pairs, wrong


def ask(rest, maker, template, method, operation, things):
    path = path_of(template, maker, things)
    query, bad = query_of(operation, maker)
    if template.endswith("/wait"):
        query = query + [("timeout", "0")]
    headers = {}
    for p in operation.get("parameters", []):
        if p["in"] == "header" and maker.random.random() < 0.5:
            headers[p["name"]] = maker.random.choice(["x", '"0123456789abcdef"', "*", "a b", "k" * 100])
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        if maker.random.random() < 0.4:
            body, bad = maker.wrong(schema), True
        else:
            body = safe(maker.right(schema))
    answer = rest.call(method.upper(), path, body, query=query, headers=headers, timeout=WAIT_S)
    shown = f"seed {SEED}: {method.upper()} {path} {query} {headers} {body!r:.500}: {answer}"
    assert answer.status < 500, shown
    assert not bad or answer.status >= 400, f"was taken although it does not fit: {shown}"
    return answer


def test_nothing_breaks_it(cloud):
    rest = rest_of(cloud)
    rest.post("/users", {"name": "ann"}, status=201)
    task = rest.post("/tasks", {"argv": ["sh", "-c", "echo a; sleep 1000"], "name": "here"}, status=201).json["id"]
    things = {"id": [task, task[:6], "here"], "users": ["ann"], "nodes": [rest.get("/nodes")["nodes"][0]["name"]], "teams": ["main"], "index": ["0", "x"]}
    maker = Maker(rest.description, SEED)
    pid = cloud.pid("virgad")
    operations = [(t, m, o) for t, ms in rest.description["paths"].items() for m, o in ms.items() if t not in NOT_HERE and t != "/logout"]
    keep = {("/nodes/{name}", "delete"), ("/users/{name}", "delete")}  # what the others are asked about stays
    for _ in range(ROUNDS):
        for template, method, operation in operations:
            mine = {k: v for k, v in things.items() if k == "id"} if (template, method) in keep else things
            ask(rest, maker, template, method, operation, mine)
    assert cloud.pid("virgad") == pid
    assert rest.get("/me")["role"] == "admin"
    rest.post("/tasks/cancel", {"matching": {}}, status=200)


def test_the_maker_makes_what_does_not_fit(cloud):
    rest = rest_of(cloud)
    maker = Maker(rest.description, SEED)
    schema = {"$ref": "#/components/schemas/TaskSpec"}
    refused = {rest.call("POST", "/tasks", maker.wrong(schema)).status for _ in range(30)}
    assert refused <= {400, 413} and refused
    assert rest.call("POST", "/tasks", {"argv": ["true"]}).status == 201


def test_schemathesis_finds_nothing(cloud, tmp_path):
    if not LONG:
        pytest.skip("schemathesis runs with VIRGA_TEST_LONG=1")
    program = tmp_path / "venv" / "bin" / "schemathesis"
    try:
        venv.create(tmp_path / "venv", with_pip=True)
        subprocess.run([tmp_path / "venv" / "bin" / "pip", "install", "-q", "schemathesis==4.32.5"], check=True, timeout=600, capture_output=True)
    except (subprocess.SubprocessError, OSError) as e:
        pytest.skip(f"schemathesis cannot be installed: {e}")
    rest = rest_of(cloud)
    ran = subprocess.run([program, "run", f"{rest.url}/api/v1/openapi.json", "-u", f"{rest.url}/api/v1", "-H", f"Authorization: Bearer {rest.token}",
                          "--tls-verify", str(rest.ca), "--checks", "not_a_server_error,content_type_conformance,response_schema_conformance,"
                          "status_code_conformance,response_headers_conformance",
                          "--exclude-path-regex", "/(events|logs|attach|forward|wait|logout|login.*)$", "--max-examples", "30", "--request-timeout", "20",
                          "--seed", str(SEED), "--no-color"], capture_output=True, timeout=1500, check=False, env={**os.environ, "PYTHONPATH": ""})
    assert ran.returncode == 0, ran.stdout.decode()[-8000:] + ran.stderr.decode()[-2000:]
