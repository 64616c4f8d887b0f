"""What travels between caller and worker: a header, then so many bytes.

    caller → worker                                worker → caller
    SETUP   who the caller is: paths, main         HELLO   which Python, which task
    DEFINE  b: slot of a function; the function    OUT ERR what was printed
    CALL    a: number of the call, b: function     RESULT  a: number of the call; the value
    (end of input: that was all)                   ERROR   a: number of the call; the exception
                                                   BROKEN  the set-up failed; the exception

A worker answers calls in the order in which they came. Everything that was printed before an answer comes before it.
"""
from __future__ import annotations

import os
import struct
from typing import Iterable, List, Optional, Sequence, Tuple, Union

Buffer = Union[bytes, bytearray, memoryview]

HELLO, SETUP, DEFINE, CALL, OUT, ERR, RESULT, ERROR, BROKEN = range(1, 10)
HEADER = struct.Struct("<4sB3xIIQ")
MAGIC = b"vgpy"
LIMIT = 1 << 36  # no frame is larger; what claims to be is not a frame
_IOV = 64


class BadFrame(Exception):
    """Not what the other side of a worker would send."""


def frame(kind: int, a: int = 0, b: int = 0, body: Sequence[Buffer] = ()) -> List[Buffer]:
    """A frame as the buffers to write."""
    return [HEADER.pack(MAGIC, kind, a, b, sum(len(part) for part in body)), *body]


def parse(header: Buffer) -> Tuple[int, int, int, int]:
    """(kind, a, b, length of the body)"""
    magic, kind, a, b, length = HEADER.unpack(header)
    if magic != MAGIC or not HELLO <= kind <= BROKEN or length > LIMIT:
        raise BadFrame(f"not a frame: {bytes(header)!r}")
    return kind, a, b, length


def write_all(fd: int, buffers: Iterable[Buffer]) -> None:
    """Writes everything to a blocking descriptor."""
    rest = [memoryview(part).cast("B") for part in buffers if len(part)]
    while rest:
        skip_written(rest, os.writev(fd, rest[:_IOV]))


def skip_written(rest: List[memoryview], n: int) -> None:
    """Takes the first n bytes out of a list of buffers."""
    done = 0
    while done < len(rest) and n >= len(rest[done]):
        n -= len(rest[done])
        done += 1
    del rest[:done]
    if n:
        rest[0] = rest[0][n:]


class Reader:
    """Takes frames out of a descriptor; the same for one that blocks and one that does not."""

    CHUNK = 1 << 18

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._have = bytearray()
        self._head: Optional[Tuple[int, int, int, int]] = None
        self._body = bytearray()
        self._filled = 0

    def _take(self) -> Optional[Tuple[int, int, int, bytearray]]:
        """A frame that is complete."""
        if self._head is None:
            if len(self._have) < HEADER.size:
                return None
            self._head = parse(self._have[:HEADER.size])
            length = self._head[3]
            self._filled = min(length, len(self._have) - HEADER.size)
            if self._filled == length:
                self._body = self._have[HEADER.size:HEADER.size + length]
            else:
                self._body = bytearray(length)
                self._body[:self._filled] = self._have[HEADER.size:]
            del self._have[:HEADER.size + length]
        kind, a, b, length = self._head
        if self._filled < length:
            return None
        body, self._head, self._body = self._body, None, bytearray()
        return kind, a, b, body

    def _read(self) -> None:
        try:
            if self._head is not None:  # straight to where it belongs
                with memoryview(self._body) as view:
                    n = os.readv(self.fd, [view[self._filled:]])
                self._filled += n
            else:
                data = os.read(self.fd, self.CHUNK)
                n = len(data)
                self._have += data
        except ConnectionError:  # the other side went without having read everything
            n = 0
        self.ended = n == 0

    def next(self) -> Optional[Tuple[int, int, int, bytearray]]:
        """The next frame; None at the end. For descriptors that block."""
        while True:
            got = self._take()
            if got is not None or self.ended:
                return got
            self._read()

    def ready(self) -> List[Tuple[int, int, int, bytearray]]:
        """Frames that are there now, reading once. For descriptors that do not block."""
        frames: List[Tuple[int, int, int, bytearray]] = []
        try:
            self._read()
        except BlockingIOError:
            return frames
        while True:
            got = self._take()
            if got is None:
                return frames
            frames.append(got)
