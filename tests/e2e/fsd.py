"""What a node's file daemons say of themselves. Standard library only: bench/run mirror uses it, too."""
import json
import socket
import struct
from pathlib import Path

STATUS, STATUS_TEXT = 5, 36  # src/fs/fsd.h


def numbers(value, key=""):
    """(name, number) of all numbers in a JSON value, by the name nearest to them."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from numbers(v, k)
    elif isinstance(value, list):
        for v in value:
            yield from numbers(v, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


def ask(path, wait_s):
    """A daemon's status, or None when nobody listens at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect(str(path))
            s.settimeout(wait_s)
            s.send(struct.pack("II", STATUS, 0))
            data = s.recv(65536)
        except ConnectionError:
            return None
    if len(data) < 8 or struct.unpack_from("I", data)[0] != STATUS_TEXT:
        raise ValueError(f"{path}: no status came but {data[:32]!r}")
    return json.loads(data[8:].rstrip(b"\0"))


def daemons(folder, wait_s=10):
    """{pid: status} of those that keep their things in a node's folder."""
    said = [ask(path, wait_s) for path in sorted(Path(folder).glob("*/sock"))]
    return {s["pid"]: s for s in said if s}


def counters(folder, wait_s=10):
    """All numbers that they say, summed by name."""
    total = {}
    for said in daemons(folder, wait_s).values():
        for key, value in numbers(said):
            total[key] = total.get(key, 0) + value
    return total
