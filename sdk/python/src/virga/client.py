"""virga.Client: what the cloud has and does, over REST. Needs no program of Virga's on this machine."""
from __future__ import annotations

import datetime
import decimal
import os
import re
import sys
import threading
import time
import uuid
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _programs
from ._http import Event, Wire, read_login
from ._options import Options
from .errors import TaskCancelled, TaskFailed, VirgaError

Moment = Union[int, float, datetime.datetime]
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"": 1, "ms": 0.001, "us": 0.000001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TOKEN_TTL_S = 12 * 3600
_made: Dict[Tuple[str, str], Tuple[str, float]] = {}  # (home, url): a token, and until when it serves new clients
_making = threading.Lock()
_WAIT_STEP_S = 20.0
_PAGE = 500


def _bytes(value: Union[int, str]) -> int:
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", value.strip(), re.I)
    if not match:
        raise ValueError(f"'{value}' is not a size such as 512M or 1.5G")
    return int(decimal.Decimal(match.group(1)) * _UNITS[match.group(2).upper()])


def _usec(value: Any) -> int:
    """A duration."""
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1e6)
    if not isinstance(value, str):
        return int(round(value * 1e6))
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|us|[smhd]?)", value)
    if not parts or "".join(n + unit for n, unit in parts) != value:
        raise ValueError(f"'{value}' is not a duration such as 90s or 1h30m")
    return round(sum(float(n) * _SECONDS[unit] for n, unit in parts) * 1e6)


def _micro(value: Any) -> int:
    """An amount of money; exactly, whatever it was written as."""
    return int(decimal.Decimal(str(value)) * 1_000_000)


def _moment(value: Optional[Moment]) -> Optional[int]:
    """A time: seconds since 1970, or a datetime."""
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return None if value is None else round(value * 1e6)


def task_body(argv: Sequence[str], options: Options, more: Mapping[str, Any]) -> Dict[str, Any]:
    """A task as POST /tasks takes it."""
    want: Dict[str, Any] = {}
    if options.gpus is not None:
        milli = int(decimal.Decimal(str(options.gpus)) * 1000)
        want.update({"gpus": milli // 1000} if milli % 1000 == 0 else {"gpu_milli": milli})
    if options.cpus is not None:
        want["cpu_milli"] = int(decimal.Decimal(str(options.cpus)) * 1000)
    for name, field in (("mem", "mem_bytes"), ("gpu_mem", "gpu_mem_bytes")):
        if getattr(options, name) is not None:
            want[field] = _bytes(getattr(options, name))
    body: Dict[str, Any] = {"argv": list(argv), "name": options.name, "pool": options.pool, "project": options.project,
                            "cwd": None if options.cwd is None else os.fspath(options.cwd), "env": options.env, "labels": options.labels,
                            "node_labels": options.node_labels, "priority": options.priority, "session": options.session,
                            "environment": options.environment, "image": options.image, "gpu_model": options.gpu_model, "want": want or None,
                            "time_limit_usec": None if options.time_limit is None else _usec(options.time_limit),
                            "max_cost_micro": None if options.max_cost is None else _micro(options.max_cost),
                            "preemptible": options.preemptible or None, "secrets": list(options.secrets) if options.secrets else None, **more}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in body.items() if value is not None}


def _own_token(home: str, url: str) -> str:
    """One for this program, however many clients it makes."""
    with _making:
        token, until = _made.get((home, url), ("", 0.0))
        if time.monotonic() >= until:
            token = _programs.virga("token", "create", "--name", "python", "--ttl", f"{_TOKEN_TTL_S}s").strip()
            _made[home, url] = token, time.monotonic() + _TOKEN_TTL_S / 2
        return token


class Client:
    """A cloud over REST. Without arguments it is the one that `virga` has here: its address, and a token of one's own.

        url     $VIRGA_URL, or what `virga status` says
        token   $VIRGA_TOKEN, or what `virga login` stored; on the machine of a cloud of one's own, one that is made for this program
        ca      whom to trust: a file, or a certificate's text. $VIRGA_CA, or the authority that the token names

    Answers are what `virga … -o json` prints: ids of 16 hex digits, times in microseconds since 1970 (`_usec`), money in
    millionths (`_micro`). A refusal is an ApiError. May be used by several threads."""

    def __init__(self, url: Optional[str] = None, token: Optional[str] = None, *, ca: Optional[str] = None, timeout: float = 60.0) -> None:
        home = os.environ.get("VIRGA_HOME") or os.path.join(os.path.expanduser("~"), ".virga")
        here = not url and not os.environ.get("VIRGA_URL") and os.path.exists(os.path.join(home, "sock"))
        url = url or os.environ.get("VIRGA_URL") or str(_programs.virga_json("status").get("url") or "")
        if not url:
            raise VirgaError("this cloud serves no REST: set 'web: HOST:PORT' in its configuration")
        token = token or os.environ.get("VIRGA_TOKEN") or (None if here else read_login(home).get("token"))
        if not token:
            token = _own_token(home, url)
        ca = ca or os.environ.get("VIRGA_CA")
        if ca is None and here and sys.version_info < (3, 10) and os.access(os.path.join(home, "control", "ca.crt"), os.R_OK):
            ca = os.path.join(home, "control", "ca.crt")  # which this Python would not see otherwise
        pin = re.fullmatch(r"vgt_.*_([0-9a-f]{32})", token)
        self._wire = Wire(url, token, ca, pin.group(1) if pin else None, timeout)
        self.url = url

    def __repr__(self) -> str:
        return f"<virga.Client {self.url}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes this thread's connection; the next request makes another."""
        self._wire.close()

    # ------------------------------------------------------------------ anything

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Any request of the API, by its path below /api/v1 (GET /openapi.json lists them)."""
        return self._wire.request(method, path, body, query)

    def get(self, path: str, **query: Any) -> Any:
        return self.request("GET", path, None, **query)

    def list(self, noun: str, **query: Any) -> List[Dict[str, Any]]:
        """All of a kind: pools, nodes, gpus, sessions, schedules, environments, users, teams, orgs, tokens, secrets, budgets, hooks, prices."""
        rows: List[Dict[str, Any]] = self.get(f"/{noun}", **query)[noun]
        return rows

    def pages(self, noun: str, limit: Optional[int] = None, **query: Any) -> Iterator[Dict[str, Any]]:
        """All of a long list, page by page, newest first: tasks, audit."""
        left, before = limit, query.pop("before", None)
        while left is None or left > 0:
            page = self.get(f"/{noun}", limit=_PAGE if left is None else min(_PAGE, left), before=before, **query)
            yield from page[noun]
            before = page.get("next")
            left = None if left is None else left - len(page[noun])
            if not before or not page[noun]:
                return

    # ------------------------------------------------------------------ the cloud

    def me(self) -> Dict[str, Any]:
        return dict(self.get("/me"))

    def status(self) -> Dict[str, Any]:
        return dict(self.get("/status"))

    def pools(self) -> List[Dict[str, Any]]:
        return self.list("pools")

    def nodes(self) -> List[Dict[str, Any]]:
        return self.list("nodes")

    def gpus(self) -> List[Dict[str, Any]]:
        return self.list("gpus")

    def queue(self, pool: Optional[str] = None) -> Dict[str, Any]:
        return dict(self.get("/queue", pool=pool))

    def events(self, *topics: str) -> Iterator[Event]:
        """What happens, as it happens: tasks, nodes, gpus, queue, budgets; all of them unless said."""
        return self._wire.stream("/events", {"topics": ",".join(topics) or None})

    # ------------------------------------------------------------------ tasks

    def tasks(self, *, state: Union[str, Iterable[str], None] = None, labels: Optional[Mapping[str, str]] = None,
              since: Optional[Moment] = None, limit: Optional[int] = None, **query: Any) -> Iterator[Dict[str, Any]]:
        """Tasks, newest first; also by pool, name, search, all_users, flat, of."""
        states = [state] if isinstance(state, str) else list(state) if state else None
        pairs = [f"{name}={value}" for name, value in labels.items()] if labels else None
        return self.pages("tasks", limit, state=states, label=pairs, since_usec=_moment(since), **query)

    def task(self, task_id: str) -> Dict[str, Any]:
        return dict(self.get(f"/tasks/{task_id}"))

    def submit(self, argv: Sequence[str], *, key: Optional[str] = None, more: Optional[Mapping[str, Any]] = None,
               **options: Any) -> Dict[str, Any]:
        """Queues a command; the task. It runs among the node's files, or in the `environment` or `image` that is named: this machine's files
        go with virga.submit. `more` has other members of the API's TaskSpec (shards, sweep, after, retries, …)."""
        body = task_body(argv, Options(**options), more or {})
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return dict(self._wire.request("POST", "/tasks", body, headers=headers))

    def estimate(self, argv: Sequence[str], **options: Any) -> Dict[str, Any]:
        """Where and when it would run, and what it would cost; nothing is started."""
        return dict(self.request("POST", "/tasks/estimate", task_body(argv, Options(**options), {})))

    def why(self, task_id: str) -> Dict[str, Any]:
        return dict(self.get(f"/tasks/{task_id}/why"))

    def cancel(self, task_id: str, *, signal: int = 0, grace: Optional[float] = None) -> None:
        self.request("POST", f"/tasks/{task_id}/cancel", {"signal": signal, **({} if grace is None else {"grace_usec": _usec(grace)})})

    def wait(self, task_id: str, timeout: Optional[float] = None, check: bool = False) -> Dict[str, Any]:
        """The task when it has ended. TimeoutError when it has not; with check=True, TaskFailed when it failed."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            step = _WAIT_STEP_S if end is None else max(0.0, min(_WAIT_STEP_S, end - time.monotonic()))
            task = dict(self.get(f"/tasks/{task_id}/wait", timeout=max(1, round(step))))
            if task["state"] in ("succeeded", "failed", "cancelled"):
                break
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"task {task_id} had not ended after {timeout} s")
        if check and task["state"] != "succeeded":
            kind = TaskCancelled if task["state"] == "cancelled" else TaskFailed
            raise kind(task["status"] or 0, task["reason"], task["id"])
        return task

    def logs(self, task_id: str, *, follow: bool = False, tail_bytes: Optional[int] = None, attempt: Optional[int] = None) -> Iterator[str]:
        """Lines of what it printed; follow=True goes on until it ends."""
        if not follow:
            text = str(self._wire.request("GET", f"/tasks/{task_id}/logs", query={"tail_bytes": tail_bytes, "attempt": attempt},
                                          headers={"Accept": "text/plain"}))
            yield from text.splitlines()
            return
        rest: Dict[Tuple[Any, Any], str] = {}
        for event in self._wire.stream(f"/tasks/{task_id}/logs", {"follow": True, "tail_bytes": tail_bytes, "attempt": attempt}):
            if event.kind != "log":
                continue
            who = (event.data.get("stream"), event.data.get("index"))
            lines = (rest.pop(who, "") + event.data["text"]).split("\n")
            if lines[-1]:
                rest[who] = lines[-1]
            yield from lines[:-1]
        yield from rest.values()

    # ------------------------------------------------------------------ money

    def cost(self, *by: str, since: Optional[Moment] = None, until: Optional[Moment] = None, **query: Any) -> Dict[str, Any]:
        """What was spent, by user, team, project, pool, day, …; also only of one user, team, pool or project."""
        return dict(self.get("/cost", by=",".join(by) or None, from_usec=_moment(since), until_usec=_moment(until), **query))

    def budgets(self) -> List[Dict[str, Any]]:
        return self.list("budgets")
