"""One worker as the caller sees it: a vrun, a socket for the frames to and from it, and what vrun itself has to say.

Used by one thread, all but wake() and end(). Nothing here blocks but step(), for as long as it is told.
"""
from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from . import _codec, _frames, _programs
from ._options import Options

_WORDS_MOST = 8192
_END_GRACE_S = 5.0
_IOV = 64

Event = Tuple[str, Any, Any]  # what, of which call, body


def worker_command() -> List[str]:
    """This Python, as it was started, with the worker's side of this package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    flags: List[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # as multiprocessing has them
    boot = f"import sys; sys.path.insert(0, {folder!r}); from virga._worker import main; main()"
    return [sys.executable, *flags, "-c", boot]


def setup_body() -> List[_frames.Buffer]:
    """Who calls: what a worker has to know to find what the caller finds."""
    name = _codec.main_name()
    path = None if name else _codec.main_path()
    return _codec.pack({"path": list(sys.path), "argv": list(sys.argv), "recursion": sys.getrecursionlimit(), "main_name": name,
                        "main_path": path})


class Channel:
    def __init__(self, options: Options, quiet: bool) -> None:
        self.task_id: Optional[str] = None
        self.words = ""  # vrun's own, the last of them
        self.queued: List[memoryview] = []
        self.end_by: Optional[float] = None
        self._id_r, id_w = os.pipe()
        argv = [_programs.program("vrun"), *(["-q"] if quiet else []), "--tty=no", "--duplex", f"--id-file=/dev/fd/{id_w}",
                *options.arguments(), "--"]
        self._socket, theirs = socket.socketpair()
        try:
            # A session of its own: what Ctrl-C means for the workers is decided here, not by the terminal.
            self.proc = subprocess.Popen([*argv, *worker_command()], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                         bufsize=0, pass_fds=[id_w], start_new_session=True)
        except BaseException:
            self._socket.close()
            os.close(self._id_r)
            raise
        finally:
            theirs.close()
            os.close(id_w)
        assert self.proc.stderr
        self.sock, self.stderr = self._socket.fileno(), self.proc.stderr.fileno()
        self.wake_r, self.wake_w = os.pipe()
        self.reader = _frames.Reader(self.sock)
        self.open = {self.sock, self.stderr}
        self.select = selectors.DefaultSelector()
        for fd in (self.sock, self.stderr, self.wake_r, self.wake_w):
            os.set_blocking(fd, False)
        for fd in (self.sock, self.stderr, self.wake_r, self._id_r):
            self.select.register(fd, selectors.EVENT_READ)
        self.writing = self.input_ended = False

    # ------------------------------------------------------------------ from any thread

    def wake(self) -> None:
        try:
            os.write(self.wake_w, b"w")
        except (BlockingIOError, OSError):
            pass  # it is awake, or gone

    def end(self) -> None:
        """The task is to end now, whatever it does."""
        if self.end_by is None:
            self.end_by = time.monotonic() + _END_GRACE_S
            if self.proc.poll() is None:
                self.proc.send_signal(signal.SIGTERM)

    # ------------------------------------------------------------------ out

    def send(self, kind: int, a: int = 0, b: int = 0, body: Sequence[_frames.Buffer] = ()) -> None:
        self.queued += [memoryview(part).cast("B") for part in _frames.frame(kind, a, b, body) if len(part)]
        self._write()

    def close_input(self) -> None:
        """That was all: a worker without work ends."""
        if not self.input_ended:
            self.input_ended = True
            self._watch_output(False)
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it is gone

    def _watch_output(self, on: bool) -> None:
        if on != self.writing and self.sock in self.open:
            self.select.modify(self.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0))
            self.writing = on

    def _write(self) -> None:
        if self.input_ended:
            self.queued.clear()
            return
        try:
            while self.queued:
                _frames.skip_written(self.queued, os.writev(self.sock, self.queued[:_IOV]))
        except BlockingIOError:
            pass
        except OSError:  # it reads no more: its end is about to be seen
            self.queued.clear()
        self._watch_output(bool(self.queued))

    # ------------------------------------------------------------------ in

    def step(self, timeout: Optional[float]) -> Iterator[Event]:
        """Waits for something and tells what came; ("end", status, None) is the last."""
        if self.end_by is not None:
            left = self.end_by - time.monotonic()
            if left <= 0:
                self.proc.kill()
            timeout = 0.5 if left <= 0 else left if timeout is None else min(timeout, left)
        for key, events in self.select.select(timeout):
            fd = key.fd
            if fd == self.wake_r:
                os.read(fd, 512)
            elif fd == self._id_r:
                self._read_id()
            elif fd == self.sock:
                if events & selectors.EVENT_WRITE:
                    self._write()
                if events & selectors.EVENT_READ:
                    yield from self._read_frames()
            elif fd == self.stderr:
                yield from self._read_words()
        if not self.open:
            status = self.proc.wait()
            yield "end", status if status >= 0 else 128 - status, None

    def _shut(self, fd: int) -> None:
        self.select.unregister(fd)
        self.open.discard(fd)

    def _read_id(self) -> None:
        data = os.read(self._id_r, 64)
        if data:
            self.task_id = data.decode("ascii", "replace").strip()
        self.select.unregister(self._id_r)

    def _read_frames(self) -> Iterator[Event]:
        names = {_frames.HELLO: "hello", _frames.OUT: "stdout", _frames.ERR: "stderr", _frames.RESULT: "result", _frames.ERROR: "error",
                 _frames.BROKEN: "broken"}
        try:
            for kind, a, _b, body in self.reader.ready():
                yield names.get(kind, "odd"), a, body
        except _frames.BadFrame as e:
            yield "odd", 0, str(e)
            self._shut(self.sock)
            return
        if self.reader.ended:
            self._shut(self.sock)

    def _read_words(self) -> Iterator[Event]:
        try:
            data = os.read(self.stderr, 65536)
        except BlockingIOError:
            return
        if not data:
            self._shut(self.stderr)
            return
        text = data.decode("utf-8", "replace")
        self.words = (self.words + text)[-_WORDS_MOST:]
        yield "words", None, text

    def close(self) -> None:
        """Gives everything back; the process must have ended or ends now."""
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()
        self.forget()

    def forget(self) -> None:
        """Closes what this process has of it and touches nothing else: after a fork it is the parent's."""
        self._socket.close()
        if self.proc.stderr:
            self.proc.stderr.close()
        self.select.close()
        for fd in (self._id_r, self.wake_r, self.wake_w):
            os.close(fd)
