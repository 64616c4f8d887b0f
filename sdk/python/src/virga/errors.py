"""What can go wrong, as types. Every one is a VirgaError and reads as a sentence."""
from __future__ import annotations

import signal as _signal
from typing import Any, Optional


class VirgaError(Exception):
    """Anything that Virga itself has to say."""


class ProgramMissing(VirgaError):
    """vrun, vbatch or virga is not on this machine."""


class Refused(VirgaError):
    """The cloud did not take the task: no such pool, no such size, no right, no cloud."""


class SerializationError(VirgaError):
    """A function, an argument or a result cannot be sent."""


class VersionMismatch(VirgaError):
    """The other side has another Python, which cannot read what this one writes."""


def describe_status(status: int) -> str:
    """An exit status in words, as a shell would have it."""
    if status > 128:
        try:
            return f"killed by {_signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"exit status {status}"


class TaskFailed(VirgaError):
    """A task ended, and not as it should. `status` is the exit status (128+n for signal n), `reason` the cloud's
    own sentence where it has one, `task_id` says which task it was."""

    def __init__(self, status: int, reason: Optional[str] = None, task_id: Optional[str] = None, what: str = "the task",
                 stdout: Any = None, stderr: Any = None) -> None:
        super().__init__(status, reason, task_id, what)
        self.status = status
        self.reason = reason
        self.task_id = task_id
        self.what = what
        self.stdout = stdout
        self.stderr = stderr

    @property
    def signal(self) -> Optional[int]:
        """The signal that killed it, if one did."""
        return self.status - 128 if self.status > 128 else None

    def __str__(self) -> str:
        where = f" {self.task_id}" if self.task_id else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.what}{where} failed ({describe_status(self.status)}){why}"


class TaskCancelled(TaskFailed):
    """Somebody cancelled the task."""

    def __str__(self) -> str:
        where = f" {self.task_id}" if self.task_id else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.what}{where} was cancelled{why}"


class RemoteTraceback(Exception):
    """The cause of an exception that came back: the traceback over there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(VirgaError):
    """A function raised something that cannot travel; `type_name` and `message` tell what it was."""

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(type_name, message, traceback)
        self.type_name = type_name
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class ApiError(VirgaError):
    """What REST answered instead: the fields of application/problem+json."""

    def __init__(self, status: int, title: str, detail: str = "", code: str = "") -> None:
        super().__init__(status, title, detail, code)
        self.status = status
        self.title = title
        self.detail = detail
        self.code = code

    def __str__(self) -> str:
        return self.detail or f"{self.status} {self.title}"
