#!/usr/bin/env python3
"""One member of a gang: all meet at rank 0 and add up their numbers, as a training step would with its
gradients. Started by gang.sh; torchrun reads the same variables. Standard library only."""
import os
import socket
import time

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
port = int(os.environ["MASTER_PORT"])
mine = (rank + 1) ** 2


def line(sock):
    data = b""
    while not data.endswith(b"\n"):
        piece = sock.recv(100)
        if not piece:
            raise SystemExit("the other side left")
        data += piece
    return int(data)


def lead():
    """Rank 0: hears everybody's number and tells everybody the sum."""
    with socket.create_server(("", port)) as server:
        members = [server.accept()[0] for _ in range(world - 1)]
        total = mine + sum(line(m) for m in members)
        for m in members:
            m.sendall(b"%d\n" % total)
            m.close()
    return total


def follow():
    """The others start at the same moment, so rank 0 may need a little to listen."""
    end = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=30) as sock:
                sock.sendall(b"%d\n" % mine)
                return line(sock)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


total = lead() if rank == 0 else follow()
print(f"rank {rank} of {world}: the sum is {total}", flush=True)
