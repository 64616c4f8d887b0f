"""Virga from Python: commands, functions and lists of work on the cloud, with this machine's files and this Python.

    import virga

    print(virga.run(["nvidia-smi", "-L"], pool="a100-1", capture=True).stdout)

    @virga.function(pool="a100-1", gpus=1)
    def train(lr):
        ...

    best = max(train.map([0.1, 0.03, 0.01]))

Standard library only.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._options import Options
from ._pool import Call
from ._task import CompletedTask, Task, arun, run, submit
from .errors import (ApiError, ProgramMissing, Refused, RemoteError, RemoteTraceback, SerializationError, TaskCancelled, TaskFailed,
                     VersionMismatch, VirgaError)
from .executor import Executor
from .function import Function, function

if TYPE_CHECKING:
    from .client import Client as Client

__version__ = "0.1.0"
__all__ = [
    "ApiError", "Call", "Client", "CompletedTask", "Executor", "Function", "Options", "ProgramMissing", "Refused", "RemoteError",
    "RemoteTraceback", "SerializationError", "Task", "TaskCancelled", "TaskFailed", "VersionMismatch", "VirgaError", "arun", "function",
    "run", "submit",
]


def __getattr__(name: str) -> Any:
    if name == "Client":  # HTTP and TLS are imported when they are wanted: workers are started often
        from .client import Client
        return Client
    raise AttributeError(f"module 'virga' has no attribute '{name}'")


def load_ipython_extension(shell: Any) -> None:
    """%load_ext virga"""
    from .magics import load
    load(shell)
