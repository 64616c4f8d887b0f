"""The other side: what a task runs that calls functions for a caller.

The task's standard input is a socket that goes both ways (vrun --duplex); no log has what passes there.

Two processes. The one below does the work: it reads calls from the socket and answers into a pipe. The one above, the shepherd, does
nothing but carry: answers, and whatever was printed, go out as frames by the socket, in order, so that nothing that was printed is lost
when the work dies; what was printed goes to the task's own output, too, for its log. The shepherd then ends as the work ended, so that the
task's status is the truth. When the caller is gone while something runs, the shepherd ends it.

Both are single-threaded as far as this module goes. Standard input of the work is /dev/null.
"""
from __future__ import annotations

import mmap
import os
import runpy
import select
import signal
import sys
import time
import traceback
import types
from typing import Any, Dict, List, Optional

from . import _codec, _frames
from ._frames import CALL, DEFINE, ERR, ERROR, BROKEN, HELLO, OUT, RESULT, SETUP

PRINT_CHUNK = 1 << 16
PIPE_BYTES = 1 << 20
ORPHAN_GRACE_S = 5.0
ORPHAN_LOOK_S = 0.2
_RDHUP = getattr(select, "POLLRDHUP", 0x2000)
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")

importing_main = False  # while the caller's script is imported again


# ---------------------------------------------------------------------- the work


def describe_exception(e: BaseException) -> List[_frames.Buffer]:
    """An exception as what the caller makes one of: the very object where it can travel, and always its traceback as text."""
    skip = e.__traceback__.tb_next if e.__traceback__ else None  # our own frame
    text = "".join(traceback.format_exception(type(e), e, skip))
    name = ".".join(part for part in (type(e).__module__, type(e).__qualname__) if part not in ("builtins", "__main__", "__mp_main__"))
    try:
        message = str(e)
    except Exception:  # noqa: BLE001 - somebody's __str__
        message = "(its text cannot be had)"
    try:
        packed = b"".join(_codec.pack(e))
        if type(_codec.unpack(bytearray(packed))) is not type(e):
            packed = b""
    except BaseException:  # noqa: BLE001 - then it travels as text
        packed = b""
    return _codec.pack((packed, name, message, text))


def import_main(name: Optional[str], path: Optional[str]) -> None:
    """Makes the caller's script __main__ here, too, without what it guards by `if __name__ == "__main__"`; as
    multiprocessing does for spawned processes, and under the same name."""
    global importing_main
    if not name and not path:
        return
    module = types.ModuleType("__mp_main__")
    importing_main = True
    try:
        if name:
            content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
        else:
            module.__file__ = path
            sys.modules["__mp_main__"] = module
            content = runpy.run_path(path or "", run_name="__mp_main__")
    finally:
        importing_main = False
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


class Work:
    """Answers calls until its input ends."""

    def __init__(self, source: int, sink: int, busy: mmap.mmap) -> None:
        self.reader = _frames.Reader(source)
        self.sink = sink
        self.busy = busy
        self.functions: Dict[int, Any] = {}
        self.packed: Dict[int, bytearray] = {}

    def send(self, kind: int, a: int, body: List[_frames.Buffer]) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass  # the function closed or replaced it
        _frames.write_all(self.sink, _frames.frame(kind, a, body=body))

    def set_up(self, body: bytearray) -> None:
        about = _codec.unpack(body)
        sys.path[:] = about["path"]
        sys.argv[:] = about["argv"]
        sys.setrecursionlimit(about["recursion"])
        import_main(about["main_name"], about["main_path"])

    def function(self, number: int) -> Any:
        if number not in self.functions:
            loaded = _codec.unpack(self.packed[number])
            self.functions[number] = getattr(loaded, "__wrapped__", loaded) if type(loaded).__module__.startswith("virga.") else loaded
        return self.functions[number]

    def call(self, number: int, function: int, body: bytearray) -> None:
        try:
            args, kwargs = _codec.unpack(body)
            value = self.function(function)(*args, **kwargs)
            kind, packed = RESULT, _codec.pack(value, "the result")
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise  # the end of the process, as the function wished
        except BaseException as e:  # noqa: BLE001 - everything goes back to the caller
            kind, packed = ERROR, describe_exception(e)
        self.send(kind, number, packed)

    def run(self) -> None:
        self.send(HELLO, 0, _codec.pack({"python": _codec.PYTHON, "task_id": os.environ.get("VIRGA_TASK_ID"), "pid": os.getpid()}))
        while True:
            got = self.reader.next()
            if got is None:
                return
            kind, a, b, body = got
            self.busy[0] = 1
            if kind == SETUP:
                try:
                    self.set_up(body)
                except BaseException as e:  # noqa: BLE001 - a script may raise anything, SystemExit too
                    self.send(BROKEN, 0, describe_exception(e))
                    return
            elif kind == DEFINE:
                self.packed[b] = body
                self.functions.pop(b, None)
            elif kind == CALL:
                self.call(a, b, body)
            self.busy[0] = 0


# ---------------------------------------------------------------------- the shepherd


def _log(fd: int, data: bytes) -> None:
    try:
        _frames.write_all(fd, [data])
    except OSError:
        pass  # then its log lacks it; the caller has it


class Shepherd:
    def __init__(self, pid: int, sock: int, prints: Dict[int, int], answers: int, busy: mmap.mmap) -> None:
        self.pid, self.sock, self.prints, self.answers, self.busy = pid, sock, prints, answers, busy
        self.orphan_since: Optional[float] = None
        self.killed = False

    def carry_prints(self) -> None:
        """Everything that was printed until now."""
        for fd, kind in list(self.prints.items()):
            while True:
                try:
                    data = os.read(fd, PRINT_CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    del self.prints[fd]
                    break
                _frames.write_all(self.sock, _frames.frame(kind, body=[data]))
                _log(1 if kind == OUT else 2, data)

    def read_exactly(self, n: int) -> bytes:
        """So many bytes of an answer, which the work is writing; fewer when it died of it."""
        parts = []
        while n:
            try:
                data = os.read(self.answers, min(n, PIPE_BYTES))
            except BlockingIOError:
                select.select([self.answers], [], [], ORPHAN_LOOK_S)
                if self.ended() and not select.select([self.answers], [], [], 0)[0]:
                    break
                continue
            if not data:
                break
            parts.append(data)
            n -= len(data)
        return b"".join(parts)

    def carry_answer(self) -> bool:
        """One frame of the work, after all that was printed before it. False: there is none."""
        try:
            head = os.read(self.answers, _frames.HEADER.size)
        except BlockingIOError:
            return False
        if not head:
            return False
        self.carry_prints()
        head += self.read_exactly(_frames.HEADER.size - len(head))
        if len(head) < _frames.HEADER.size:
            return False
        left = _frames.parse(head)[3]
        _frames.write_all(self.sock, [head])
        while left:
            data = self.read_exactly(min(left, PIPE_BYTES))
            if not data:
                return False
            _frames.write_all(self.sock, [data])
            left -= len(data)
        return True

    status: Optional[int] = None

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def end_orphan(self) -> None:
        """The caller is gone: what still runs has nobody to answer to."""
        if self.orphan_since is None or not self.busy[0]:
            return
        late = time.monotonic() - self.orphan_since > ORPHAN_GRACE_S
        if late or not self.killed:
            os.kill(self.pid, signal.SIGKILL if late else signal.SIGTERM)
        self.killed = True

    def run(self, wake: int) -> None:
        poll = select.poll()
        for fd in (*self.prints, self.answers, wake):
            poll.register(fd, select.POLLIN)
        poll.register(self.sock, _RDHUP)  # its end alone
        while not self.ended():
            for fd, events in poll.poll(None if self.orphan_since is None else int(ORPHAN_LOOK_S * 1000)):
                if fd == wake:
                    os.read(wake, 512)
                elif fd == self.sock:
                    poll.unregister(fd)
                    self.orphan_since = time.monotonic()
                elif fd == self.answers:
                    if not self.carry_answer() and events & select.POLLHUP:
                        poll.unregister(fd)
                elif fd in self.prints:
                    self.carry_prints()
                    if fd not in self.prints:
                        poll.unregister(fd)
            self.end_orphan()
        while self.carry_answer():
            pass
        self.carry_prints()


def end_like(status: int) -> None:
    """Ends this process as the one with this wait status ended."""
    if os.WIFSIGNALED(status):
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def shepherd_main(pid: int, sock: int, prints: Dict[int, int], answers: int, busy: mmap.mmap) -> None:
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w, answers, *prints):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def pass_on(number: int, _frame: Any) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for name in _PASSED_ON:
        signal.signal(getattr(signal, name), pass_on)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    shepherd = Shepherd(pid, sock, prints, answers, busy)
    try:
        shepherd.run(wake_r)
    except (BrokenPipeError, ConnectionError):  # nobody reads any more
        os.kill(pid, signal.SIGKILL)
        _, shepherd.status = os.waitpid(pid, 0)
    end_like(shepherd.status or 0)


def _grow(fd: int) -> None:
    import fcntl
    try:
        fcntl.fcntl(fd, 1031, PIPE_BYTES)  # F_SETPIPE_SZ; a smaller pipe is only slower
    except OSError:
        pass


def main() -> None:
    """What the task's command runs."""
    sock = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    answers_r, answers_w = os.pipe()
    _grow(answers_r)
    busy = mmap.mmap(-1, 1)
    pid = os.fork()
    if pid:
        for fd in (out_w, err_w, answers_w):
            os.close(fd)
        shepherd_main(pid, sock, {out_r: OUT, err_r: ERR}, answers_r, busy)
    for fd in (out_r, err_r, answers_r):
        os.close(fd)
    os.dup2(out_w, 1)
    os.dup2(err_w, 2)
    os.close(out_w)
    os.close(err_w)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Work(sock, answers_w, busy).run()
