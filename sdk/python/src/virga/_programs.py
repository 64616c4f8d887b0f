"""The programs of this machine that talk to the cloud: vrun, vbatch and virga, found in $VIRGA_BIN or PATH."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

from .errors import ProgramMissing, Refused

_SLOTS_FRESH_S = 30.0
_WORKERS_MOST = 64
_ENDED_S = 5.0
_slots: Dict[Tuple[Optional[str], Optional[str]], Tuple[float, int]] = {}


def program(name: str) -> str:
    """The path of one of them."""
    folder = os.environ.get("VIRGA_BIN")
    found = os.path.join(folder, name) if folder else shutil.which(name)
    if not found or not os.access(found, os.X_OK):
        where = f"in VIRGA_BIN ({folder})" if folder else "in PATH"
        raise ProgramMissing(f"there is no '{name}' {where}: install Virga, or set VIRGA_BIN to the folder that has its programs")
    return found


def sentence(text: str) -> str:
    """What a program said last, without its own name."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    for name in ("vrun: ", "vbatch: ", "virga: "):
        if last.startswith(name):
            return last[len(name):]
    return last


def virga(*words: str, timeout: Optional[float] = None) -> str:
    """Output of a `virga` command; Refused, with its own sentence, when it fails."""
    done = subprocess.run([program("virga"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8", errors="replace", timeout=timeout, check=False)
    if done.returncode:
        raise Refused(sentence(done.stderr) or f"virga {words[0]} failed with status {done.returncode}")
    return done.stdout


def virga_json(*words: str) -> Any:
    """The same, of a command that has -o json."""
    return json.loads(virga(*words, "-o", "json"))


def task_info(task_id: Optional[str]) -> Dict[str, Any]:
    """What the cloud knows of a task; {} when it knows nothing or cannot be asked."""
    if not task_id:
        return {}
    try:
        info: Dict[str, Any] = virga_json("task", "get", task_id)
        return info
    except (Refused, ProgramMissing, ValueError):
        return {}


def _rows(answer: Any, noun: str) -> List[Dict[str, Any]]:
    rows: List[Dict[str, Any]] = answer.get(noun, []) if isinstance(answer, dict) else answer
    return rows


def slots(pool: Optional[str]) -> int:
    """How many tasks fit into a pool at once, as far as that can be told: its slots; where it reserves nothing, the CPUs of the nodes."""
    key = (pool, os.environ.get("VIRGA_HOME"))
    when, n = _slots.get(key, (0.0, 0))
    if not n or time.monotonic() - when > _SLOTS_FRESH_S:
        names = pool.split(",") if pool else []
        rows = [p for p in _rows(virga_json("pool", "list"), "pools") if (p["name"] in names if names else p.get("default"))]
        n = sum(int(p.get("total_slots") or 0) for p in rows)
        if not n:
            here = {p["name"] for p in rows}
            n = sum(int(node["total"]["cpu_milli"]) // 1000 for node in _rows(virga_json("node", "list"), "nodes")
                    if here.intersection(node["pools"]))
        n = max(1, min(n, _WORKERS_MOST))
        _slots[key] = (time.monotonic(), n)
    return n


def ended_info(task_id: Optional[str]) -> Dict[str, Any]:
    """The same of a task whose vrun has ended, when the cloud has heard of that, too."""
    if task_id:
        try:
            subprocess.run([program("virga"), "task", "wait", task_id], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=_ENDED_S, check=False)
        except (subprocess.TimeoutExpired, ProgramMissing):
            pass
    return task_info(task_id)
