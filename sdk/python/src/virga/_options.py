"""What a task is asked for, once for commands and functions: keyword arguments into the words of vrun and vbatch."""
from __future__ import annotations

import dataclasses
import datetime
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

Size = Union[int, str]  # bytes, or "512M"
Duration = Union[int, float, str, datetime.timedelta]  # seconds, or "1h30m"
Amount = Union[int, float, str]
PathLike = Union[str, "os.PathLike[str]"]


def _number(value: Union[int, float, str], decimals: int = 3) -> str:
    return value if isinstance(value, str) else f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def _size(value: Size) -> str:
    return value if isinstance(value, str) else str(int(value))


def _duration(value: Duration) -> str:
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    return value if isinstance(value, str) else f"{max(1, round(value * 1000))}ms"


def _pairs(values: Mapping[str, Any]) -> List[str]:
    for name in values:
        if not name or "=" in name:
            raise ValueError(f"'{name}' is not a name: it is empty or has an '=' in it")
    return [f"{name}={value}" for name, value in values.items()]


@dataclasses.dataclass(frozen=True)
class Options:
    """What to run on and under which rules. Everything has a default; see vrun(1) for what each one means."""

    pool: Optional[str] = None
    gpus: Optional[Union[int, float, str]] = None
    gpu_mem: Optional[Size] = None
    gpu_model: Optional[str] = None
    cpus: Optional[Union[int, float, str]] = None
    mem: Optional[Size] = None
    env: Optional[Mapping[str, str]] = None
    cwd: Optional[PathLike] = None
    name: Optional[str] = None
    labels: Optional[Mapping[str, str]] = None
    node_labels: Optional[Mapping[str, str]] = None
    secrets: Optional[Sequence[str]] = None
    project: Optional[str] = None
    session: Optional[str] = None
    environment: Optional[str] = None
    image: Optional[str] = None
    writable: Optional[Sequence[PathLike]] = None
    priority: Optional[int] = None
    time_limit: Optional[Duration] = None
    preemptible: bool = False
    sync: bool = False
    max_cost: Optional[Amount] = None

    def __post_init__(self) -> None:
        for field in ("secrets", "writable"):
            if isinstance(getattr(self, field), str):
                raise TypeError(f"{field} is a list of names, not one")

    def replace(self, **changes: Any) -> "Options":
        """The same with some of it changed; labels and env are added to."""
        for field in ("env", "labels", "node_labels"):
            if changes.get(field) is not None and getattr(self, field):
                changes[field] = {**getattr(self, field), **changes[field]}
        return dataclasses.replace(self, **changes)

    def arguments(self) -> List[str]:
        """As vrun and vbatch take them."""
        said: Dict[str, Optional[str]] = {
            "--pool": self.pool, "--gpu-model": self.gpu_model, "--name": self.name, "--project": self.project,
            "--session": self.session, "--env": self.environment, "--image": self.image,
            "--gpus": None if self.gpus is None else _number(self.gpus),
            "--gpu-mem": None if self.gpu_mem is None else _size(self.gpu_mem),
            "--cpus": None if self.cpus is None else _number(self.cpus),
            "--mem": None if self.mem is None else _size(self.mem),
            "--directory": None if self.cwd is None else os.fspath(self.cwd),
            "--priority": None if self.priority is None else str(self.priority),
            "--time": None if self.time_limit is None else _duration(self.time_limit),
            "--max-cost": None if self.max_cost is None else _number(self.max_cost, 6),
        }
        words = [f"{option}={value}" for option, value in said.items() if value is not None]
        for pair in _pairs(self.env or {}):
            words += ["-e", pair]
        words += [f"--label={pair}" for pair in _pairs(self.labels or {})]
        words += [f"--node-label={pair}" for pair in _pairs(self.node_labels or {})]
        words += [f"--secret={name}" for name in self.secrets or ()]
        words += [f"--writable={os.fspath(path)}" for path in self.writable or ()]
        sync = self.sync and not self.environment and not self.image  # it is about this machine's files
        return words + (["--preemptible"] if self.preemptible else []) + (["--sync"] if sync else [])
