"""REST as a stranger would use it: a client that holds every answer against the description that the cloud serves. Standard library only."""
import http.client
import json
import re
import ssl
import urllib.parse


class Mismatch(AssertionError):
    """An answer is not what /api/v1/openapi.json says."""


def fits(schema, value, root, at="$"):
    """Checks the part of JSON Schema that the cloud's description uses, strictly: what is not named is not there. Raises Mismatch."""
    known = {"$ref", "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "pattern", "minimum", "maximum",
             "minLength", "maxLength", "maxItems", "format", "propertyNames"}
    if set(schema) - known:
        raise Mismatch(f"{at}: the validator does not know {set(schema) - known}")
    if "$ref" in schema:
        fits(root["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], value, root, at)
        return
    if "anyOf" in schema:
        faults = []
        for one in schema["anyOf"]:
            try:
                fits(one, value, root, at)
                return
            except Mismatch as e:
                faults.append(str(e))
        raise Mismatch(f"{at}: none of these: {faults}")
    kinds = {"string": lambda v: isinstance(v, str), "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
             "boolean": lambda v: isinstance(v, bool), "null": lambda v: v is None, "array": lambda v: isinstance(v, list),
             "object": lambda v: isinstance(v, dict)}
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if wanted and not any(kinds[k](value) for k in wanted):
        raise Mismatch(f"{at}: {value!r} is no {' or '.join(wanted)}")
    if "enum" in schema and value not in schema["enum"]:
        raise Mismatch(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            raise Mismatch(f"{at}: {value!r} is not {schema['pattern']}")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 40):
            raise Mismatch(f"{at}: {len(value)} characters")
    elif isinstance(value, int) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise Mismatch(f"{at}: {value} is out of range")
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", 1 << 40):
            raise Mismatch(f"{at}: {len(value)} elements")
        for i, one in enumerate(value):
            fits(schema.get("items", {}), one, root, f"{at}[{i}]")
    elif isinstance(value, dict) and "object" in wanted:
        fits_object(schema, value, root, at)


def fits_object(schema, value, root, at):
    named, other = schema.get("properties", {}), schema.get("additionalProperties", False)
    missing = [k for k in schema.get("required", []) if k not in value]
    if missing:
        raise Mismatch(f"{at}: without {missing}")
    for key, one in value.items():
        fits(schema.get("propertyNames", {}), key, root, f"{at} {key!r}")
        if key in named:
            fits(named[key], one, root, f"{at}.{key}")
        elif isinstance(other, dict):
            fits(other, one, root, f"{at}.{key}")
        elif schema.get("properties") is not None:
            raise Mismatch(f"{at}: {key} is not described")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


class Rest:
    """One caller: a token, a cookie, or nothing. `called` is shared by those made from one another (as_)."""

    def __init__(self, url, ca, token=None, like=None):
        self.url, self.ca, self.token, self.cookie = url, ca, token, None
        self.host = urllib.parse.urlsplit(url)
        self.tls = ssl.create_default_context(cafile=str(ca))
        self.connection = None
        self.called = like.called if like else {}
        self.description = like.description if like else self.raw("GET", "/api/v1/openapi.json").json

    def as_(self, token):
        return Rest(self.url, self.ca, token, self)

    def raw(self, method, target, body=None, headers=(), timeout=30):
        """One request on a connection that is kept; made anew when the other side has closed it."""
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if self.cookie:
            sent["Cookie"] = self.cookie
        sent.update(headers)
        for again in (False, True):
            fresh = self.connection is None
            if fresh:
                self.connection = http.client.HTTPSConnection(self.host.hostname, self.host.port, timeout=timeout, context=self.tls)
            try:
                self.connection.request(method, target, body, sent)
                got = self.connection.getresponse()
                answer = Answer(got.status, got.headers, got.read())
                if got.will_close:
                    self.close()
                return answer
            except (http.client.HTTPException, ConnectionError):
                self.close()
                if again or fresh:
                    raise
        return None

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    # ------------------------------------------------------------------ against the description

    def operation(self, method, path):
        parts = path.split("/")
        found = []
        for template, methods in self.description["paths"].items():
            wanted = template.split("/")
            if method.lower() in methods and len(wanted) == len(parts) and \
                    all(w == p or (w.startswith("{") and p) for w, p in zip(wanted, parts)):
                found.append(template)
        return min(found, key=lambda t: t.count("{"), default=None)

    def call(self, method, path, body=None, query=None, headers=(), status=None, timeout=30):
        """Calls what lies below /api/v1 and checks the answer. `status`: what it must be; None: any that the description has."""
        target = "/api/v1" + path + ("?" + urllib.parse.urlencode(query, doseq=True) if query else "")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.raw(method, target, data, headers, timeout)
        template = self.operation(method, path)
        if status is not None:
            assert answer.status == status, f"{method} {target}: {answer}, not {status}"
        if template:
            self.check(method, template, answer)
        return answer

    def check(self, method, template, answer):
        described = self.description["paths"][template][method.lower()]["responses"]
        self.called.setdefault((method, template), set()).add(answer.status)
        if answer.status == 304:
            return
        entry = described.get(str(answer.status)) or described["default"]
        kinds = entry.get("content", {})
        kind = (answer.headers.get("Content-Type") or "").split(";")[0]
        if str(answer.status) not in described and answer.status < 400:
            raise Mismatch(f"{method} {template}: {answer.status} is not described")
        if not kinds:
            assert not answer.body, f"{method} {template}: a body where none is described: {answer}"
        elif kind not in kinds:
            raise Mismatch(f"{method} {template}: {kind!r} is none of {list(kinds)}: {answer}")
        elif kind in ("application/json", "application/problem+json"):
            value = answer.json
            fits(kinds[kind]["schema"], value, self.description, f"{method} {template} {answer.status} ")
            if answer.status >= 400:
                assert value["status"] == answer.status and value["detail"], value

    def get(self, path, **kw):
        return self.call("GET", path, status=kw.pop("status", 200), **kw).json

    def post(self, path, body=None, **kw):
        return self.call("POST", path, body, **kw)


def rest_of(cloud, token=None):
    """A caller of this cloud's, as its administrator unless a token is given."""
    url = cloud.json("status")["url"]
    token = token or cloud.out("virga", "token", "create", "--name", "rest")
    return Rest(url, cloud.home / "control" / "ca.crt", token)
