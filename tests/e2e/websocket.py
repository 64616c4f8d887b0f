"""A WebSocket client of the standard library, for tests: blocking, one message at a time."""
import base64
import os
import socket
import ssl
import struct


class Refused(Exception):
    """The server answered something else than an upgrade."""

    def __init__(self, head, body):
        super().__init__(head)
        self.status = int(head.split()[1])
        self.body = body


class WebSocket:
    TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

    def __init__(self, address, path, context=None, headers=(), timeout=20):
        """`address` is (host, port); `context` an SSLContext, None: plain."""
        self.sock = socket.create_connection(address, timeout)
        if context:
            self.sock = context.wrap_socket(self.sock, server_hostname=address[0])
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", *headers, "", ""]
        self.sock.sendall("\r\n".join(lines).encode())
        self.data = b""
        head = self._until(b"\r\n\r\n").decode()
        if " 101 " not in head.split("\r\n")[0]:
            length = next((int(h[15:]) for h in head.split("\r\n") if h.lower().startswith("content-length:")), 0)
            raise Refused(head, self._take(length))
        self.code = None

    def _more(self):
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError("the server hung up")
        self.data += piece

    def _until(self, mark):
        while mark not in self.data:
            self._more()
        at = self.data.index(mark) + len(mark)
        return self._take(at)

    def _take(self, n):
        while len(self.data) < n:
            self._more()
        piece, self.data = self.data[:n], self.data[n:]
        return piece

    def send(self, data, kind=None):
        kind = kind or (self.TEXT if isinstance(data, str) else self.BINARY)
        data = data.encode() if isinstance(data, str) else data
        mask = os.urandom(4)
        n = len(data)
        size = struct.pack("!B", 0x80 | n) if n < 126 else struct.pack("!BH", 0xfe, n) if n < 65536 else \
            struct.pack("!BQ", 0xff, n)
        body = bytes(b ^ mask[i & 3] for i, b in enumerate(data))
        self.sock.sendall(bytes([0x80 | kind]) + size + mask + body)

    def recv(self):
        """The next message: str or bytes; None when the server has closed (see .code)."""
        while True:
            first, n = self._take(2)
            n = struct.unpack("!H", self._take(2))[0] if n == 126 else struct.unpack("!Q", self._take(8))[0] if n == 127 else n
            data = self._take(n)
            kind = first & 15
            if kind == self.PING:
                self.send(data, self.PONG)
            elif kind == self.CLOSE:
                self.code = struct.unpack("!H", data[:2])[0] if n >= 2 else 1005
                return None
            elif kind in (self.TEXT, self.BINARY):
                return data.decode() if kind == self.TEXT else data

    def close(self):
        self.sock.close()
