"""What lives behind REST: events as things change, output as it is written, terminals and ports as WebSockets."""
import contextlib
import json
import os
import socket

import pytest
from rest import rest_of
from virga import rss_kib, wait_for
from websocket import Refused, WebSocket

CONFIG = """
heartbeat: 500ms
limits:
  web_rate: 0
pools:
  - name: default
  - name: never
    nodes:
      labels:
        none: none
"""


@pytest.fixture(scope="module")
def rest(cloud):
    return rest_of(cloud)


class Events:
    """A text/event-stream, read one event at a time."""

    def __init__(self, rest, path, query="", timeout=30):
        self.sock = rest.tls.wrap_socket(socket.create_connection((rest.host.hostname, rest.host.port), timeout),
                                         server_hostname=rest.host.hostname)
        auth = f"Cookie: {rest.cookie}" if rest.cookie else f"Authorization: Bearer {rest.token}"
        self.sock.sendall(f"GET /api/v1{path}{query} HTTP/1.1\r\nHost: h\r\n{auth}\r\n\r\n".encode())
        self.file = self.sock.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip()):
            name, value = line.split(b": ", 1)
            self.headers[name.decode().lower()] = value.decode()
        self.text = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.file.close()
        self.sock.close()

    def next(self):
        """(event, data); None at the end of the stream."""
        patience = 4  # every 15 s a comment: nothing happened meanwhile
        while b"\n\n" not in self.text or self.text.startswith(b":"):
            if b"\n\n" in self.text:
                patience -= 1
                if not patience:
                    raise TimeoutError("no event")
                self.text = self.text.split(b"\n\n", 1)[1]
                continue
            size = int(self.file.readline() or b"0", 16)
            if not size:
                return None
            self.text += self.file.read(size)
            assert self.file.readline() == b"\r\n"
        one, self.text = self.text.split(b"\n\n", 1)
        name, data = one.decode().split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        return name[7:], json.loads(data[6:])

    def until(self, want):
        while (event := self.next()):
            if want(*event):
                return event[1]
        raise EOFError("the stream ended")


def test_events_tell_how_things_are_and_what_changes(cloud, rest):
    with Events(rest, "/events") as e:
        assert e.status == 200 and e.headers["content-type"] == "text/event-stream"
        seen = {}
        while not {"node", "gpus", "queue", "status"} <= set(seen):
            name, data = e.next()
            seen[name] = data
        assert seen["node"]["state"] == "ready" and seen["status"]["nodes_ready"] == 1
        task = rest.post("/tasks", {"argv": ["sh", "-c", "sleep 0.3; exit 4"], "name": "told"}, status=201).json["id"]
        ended = e.until(lambda name, data: name == "task" and data["id"] == task and data["state"] == "failed")
        assert ended["status"] == 4
        assert ended == {**ended, **{k: v for k, v in rest.get(f"/tasks/{task}").items() if k in ("name", "user", "argv", "created_usec")}}


def test_only_what_was_asked_for_is_told(cloud, rest):
    assert rest.call("GET", "/events", query={"topics": "wheather"}).status == 400
    assert rest.as_(None).call("GET", "/events").status == 401
    with Events(rest, "/events", "?topics=tasks&label=a%3Db") as e:
        rest.post("/tasks", {"argv": ["true"]}, status=201)
        other = rest.post("/tasks", {"argv": ["true"], "labels": {"a": "b"}}, status=201).json["id"]
        name, data = e.next()
        assert name == "task" and data["id"] == other, "neither a node nor the first task"


def test_nobody_hears_of_what_is_not_theirs(cloud, rest):
    for who, team in (("ann", "red"), ("bob", "blue")):
        cloud.virga("team", "add", team, check=0)
        cloud.virga("user", "add", who, "--team", team, "--uid", str(4000 + len(team)), check=0)
    ann, bob = (rest.as_(cloud.out("virga", "token", "create", "--user", who)) for who in ("ann", "bob"))
    with Events(ann, "/events", "?topics=tasks&all_users=1") as a, Events(bob, "/events", "?topics=tasks&all_users=1") as b:
        first = ann.post("/tasks", {"argv": ["true"], "pool": "never"}, status=201).json["id"]
        second = bob.post("/tasks", {"argv": ["true"], "pool": "never"}, status=201).json["id"]
        assert a.next()[1]["id"] == first and b.next()[1]["id"] == second
    assert ann.call("GET", f"/tasks/{second}/logs", query={"follow": 1}).status == 404
    with pytest.raises(Refused) as refused:
        attach(ann, second)
    assert refused.value.status == 404
    with Events(ann, "/events", "?topics=tasks") as a:
        cloud.virga("token", "revoke", ann.token.split("_")[1], check=0)
        assert a.next() is None, "rights that end end the stream"


def test_output_comes_as_it_is_written(cloud, rest):
    script = 'for i in 1 2 3; do echo "out $i é"; echo "err $i" >&2; sleep 0.2; done; exit 3'
    task = rest.post("/tasks", {"argv": ["sh", "-c", script]}, status=201).json["id"]
    texts, end = {"stdout": "", "stderr": ""}, None
    with Events(rest, f"/tasks/{task}/logs", "?follow=1") as e:
        while (event := e.next()):
            if event[0] == "log":
                texts[event[1]["stream"]] += event[1]["text"]
            else:
                end = event
    assert texts == {"stdout": "out 1 é\nout 2 é\nout 3 é\n", "stderr": "err 1\nerr 2\nerr 3\n"}
    assert end == ("end", {"state": "failed", "status": 3})


def test_characters_that_are_cut_in_two_are_put_together(cloud, rest):
    script = "import os,time\nfor b in 'é€🌧'.encode(): os.write(1, bytes([b])); time.sleep(0.02)\nos.write(1, b'\\xff')"
    task = rest.post("/tasks", {"argv": ["python3", "-c", script]}, status=201).json["id"]
    text = ""
    with Events(rest, f"/tasks/{task}/logs", "?follow=1") as e:
        while (event := e.next()):
            text += event[1].get("text", "")
    assert text == "é€🌧\ufffd"


def test_a_reader_who_sleeps_costs_little(cloud, rest):
    task = rest.post("/tasks", {"argv": ["sh", "-c", "head -c 60000000 /dev/zero | tr '\\0' x; sleep 60"]}, status=201).json["id"]
    before = rss_kib(cloud.pid("virgad"))
    with Events(rest, f"/tasks/{task}/logs", "?follow=1") as e:
        assert e.next()[0] == "log"
        wait_for("the output to be written", lambda: cloud.task(task)["out_bytes"] > 8_000_000)
        assert rss_kib(cloud.pid("virgad")) - before < 32 << 10
    rest.post(f"/tasks/{task}/cancel", {"grace_usec": 1}, status=204)


# ------------------------------------------------------------------ WebSockets

def attach(rest, task, query="", kind="attach", headers=()):
    return WebSocket((rest.host.hostname, rest.host.port), f"/api/v1/tasks/{task}/{kind}{query}", rest.tls,
                     [f"Authorization: Bearer {rest.token}", *headers])


@contextlib.contextmanager
def shell(rest):
    task = rest.post("/tasks", {"argv": ["sh"], "tty": {"rows": 24, "cols": 80}, "stdin_open": True}, status=201).json["id"]
    yield task
    rest.call("POST", f"/tasks/{task}/cancel", {"grace_usec": 1})


def expect(ws, text):
    """What comes until this text is there: (bytes, events)."""
    got, events = b"", []
    while text not in got:
        message = ws.recv()
        assert message is not None, (got, events, ws.code)
        if isinstance(message, str):
            events.append(json.loads(message))
        else:
            got += message
    return got, events


def last_words(ws):
    events = []
    while (message := ws.recv()) is not None:
        if isinstance(message, str):
            events.append(json.loads(message))
    return events


def test_a_terminal_is_typed_into_resized_left_and_found_again(cloud, rest):
    with shell(rest) as task:
        ws = attach(rest, task, "?rows=30&cols=100")
        ws.send(b"stty size; echo a$((1+1))\n")
        got, events = expect(ws, b"a2\r\n")
        assert b"30 100\r\n" in got and {"event": "started"} in events
        ws.send(json.dumps({"resize": {"rows": 50, "cols": 132}}))
        ws.send(b"stty size; echo a$((1+2))\n")
        assert b"50 132\r\n" in expect(ws, b"a3\r\n")[0]
        ws.close()  # a tab that is closed
        cloud.wait_state(task, "running")
        ws = attach(rest, task)
        assert b"50 132\r\n" in expect(ws, b"a3\r\n")[0], "what was there is shown again"
        ws.send(b"exit 7\n")
        assert {"event": "exit", "status": 7} in last_words(ws) and ws.code == 1000
        ws = attach(rest, task)  # it has ended: its output, and how
        assert {"event": "exit", "status": 7} in last_words(ws)


def test_a_signal_and_one_who_only_looks(cloud, rest):
    with shell(rest) as task:
        ws = attach(rest, task)
        ws.send(b"trap 'echo got it' INT; echo r$((1+1))\n")
        expect(ws, b"r2\r\n")
        looker = attach(rest, task, "?observe=1")
        looker.send(b"echo from the looker\n")
        ws.send(json.dumps({"signal": 2}))
        ws.send(b"echo r$((1+2))\n")
        if b"got it" not in expect(ws, b"r3\r\n")[0]:  # the shell may have read the line first
            expect(ws, b"got it")
        assert b"from the looker" not in expect(looker, b"r3\r\n")[0]
        looker.close()
        ws.close()


def test_who_is_refused_a_terminal(cloud, rest):
    with shell(rest) as task:
        with pytest.raises(Refused) as refused:
            attach(rest, task, headers=["Origin: https://evil.example"])
        assert refused.value.status == 403
        for target, query, status in ((task, "?rows=many", 400), ("ffffffff", "", 404)):
            with pytest.raises(Refused) as refused:
                attach(rest, target, query)
            assert refused.value.status == status
        with pytest.raises(Refused) as refused:
            attach(rest.as_("vgt_wrong"), task)
        assert refused.value.status == 401
        assert rest.call("GET", f"/tasks/{task}/attach").status == 426, "it is no page"


def test_a_port_inside_a_task(cloud, rest):
    script = "import socket\ns=socket.create_server(('127.0.0.1', 5005)); c,_=s.accept()\nprint('up', flush=True)\nwhile (d:=c.recv(65536)): c.sendall(d)"
    task = rest.post("/tasks", {"argv": ["python3", "-c", script]}, status=201).json["id"]
    cloud.wait_state(task, "running")

    def reach():
        ws = attach(rest, task, "?port=5005", "forward")
        try:
            ws.send(b"hello")
            return ws if ws.recv() == b"hello" else None
        except EOFError:
            return None
    ws = wait_for("the port", reach)
    data = os.urandom(300000)
    ws.send(data[:200000])
    ws.send(data[200000:])
    got = b""
    while len(got) < len(data):
        got += ws.recv()
    assert got == data
    ws.close()
    cloud.wait_state(task, "succeeded")
    with pytest.raises(Refused) as refused:
        attach(rest, task, "?port=5005", "forward")
    assert refused.value.status == 409
