"""Requests over HTTPS with the cloud's own authority pinned: one connection a thread, kept open; streams have their own."""
from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import os
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from .errors import ApiError, VirgaError

JSON_MOST = 1 << 28  # of one answer, bytes
LINE_MOST = 1 << 24  # of one line of a stream
TRIES = 4
_BUSY = (429, 503)
_WAIT_MOST_S = 10.0


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened, as the cloud told it: what it is about, and the object as it is now."""

    kind: str
    data: Any


def pinned_authority(host: str, port: int, pin: str, timeout: float) -> str:
    """The certificate, of those that a server shows, whose SHA-256 begins with `pin`. Nothing but its fingerprint is believed of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), timeout) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        for certificate in _shown(tls):
            if hashlib.sha256(certificate).hexdigest().startswith(pin):
                return ssl.DER_cert_to_PEM_cert(certificate)
    raise _NotShown("this is not the cloud that the token belongs to: check the address, or get a new token there")


class _NotShown(VirgaError):
    """The server does not name the authority that the token names."""


def _trusted_anyway(host: str, port: int, context: ssl.SSLContext, timeout: float) -> bool:
    """Whether the system's authorities vouch for a server: one whose operator gave it a certificate that browsers trust."""
    try:
        with socket.create_connection((host, port), timeout) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except ssl.SSLError:
        return False


def _lenient(context: ssl.SSLContext) -> ssl.SSLContext:
    """Since 3.13 certificates must name their authority's key, which those that older control planes made do not. Signature, dates, purpose
    and host are checked as ever."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _shown(tls: ssl.SSLSocket) -> Iterator[bytes]:
    outer: Any = tls
    if hasattr(outer, "get_unverified_chain"):  # since 3.13
        yield from outer.get_unverified_chain()
        return
    inner: Any = getattr(tls, "_sslobj", None)
    if not hasattr(inner, "get_unverified_chain"):
        raise VirgaError("this Python cannot see which authority a server names: give ca=, the cloud's control/ca.crt")
    for certificate in inner.get_unverified_chain() or ():
        yield ssl.PEM_cert_to_DER_cert(certificate.public_bytes())


def tls_context(host: str, port: int, ca: Optional[str], pin: Optional[str], timeout: float) -> ssl.SSLContext:
    """Whom to trust: the authority that was given (a file, or its text), the one that the token names, or the system's."""
    if ca is not None:
        return _lenient(ssl.create_default_context(cadata=ca) if "BEGIN CERTIFICATE" in ca else ssl.create_default_context(cafile=ca))
    context = ssl.create_default_context()
    try:
        if pin:
            context.load_verify_locations(cadata=pinned_authority(host, port, pin, timeout))
            return _lenient(context)
    except _NotShown:
        if not _trusted_anyway(host, port, context, timeout):
            raise
    return context


class Wire:
    """One cloud's address, and the way to it."""

    def __init__(self, url: str, token: str, ca: Optional[str], pin: Optional[str], timeout: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise VirgaError(f"'{url}' is not an address such as https://cloud.example.org:7443: 'virga status' shows it")
        self.host, self.port, self.base = parts.hostname, parts.port or 443, parts.path.rstrip("/") + "/api/v1"
        self.token, self.timeout = token, timeout
        self._trust = (ca, pin)
        self._context: Optional[ssl.SSLContext] = None
        self._local = threading.local()

    def connect(self, timeout: Optional[float]) -> http.client.HTTPSConnection:
        if self._context is None:
            self._context = tls_context(self.host, self.port, *self._trust, self.timeout)
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self._context)
        connection.connect()
        if connection.sock is not None:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def path(self, path: str, query: Optional[Mapping[str, Any]]) -> str:
        pairs = []
        for name, value in (query or {}).items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if one is not None:
                    pairs.append((name, {True: "1", False: "0"}.get(one, one) if isinstance(one, bool) else one))
        asked = "?" + urllib.parse.urlencode(pairs) if pairs else ""
        return self.base + urllib.parse.quote(path, safe="/@:%") + asked

    def headers(self, extra: Optional[Mapping[str, str]]) -> Dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json", **(extra or {})}

    def _once(self, method: str, path: str, body: Optional[bytes], headers: Dict[str, str],
              timeout: float) -> Tuple[http.client.HTTPResponse, bytes]:
        connection = getattr(self._local, "connection", None)
        fresh = connection is None
        while True:
            if connection is None:
                connection = self._local.connection = self.connect(timeout)
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(timeout)
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                data = answer.read(JSON_MOST + 1)
                if len(data) > JSON_MOST:
                    raise VirgaError(f"the cloud's answer to {method} {path} is larger than {JSON_MOST >> 20} MiB")
                return answer, data
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError, http.client.CannotSendRequest):
                self.close()
                if fresh or (method != "GET" and "Idempotency-Key" not in headers):
                    raise
                connection, fresh = None, True  # it had been closed while nobody looked
            except BaseException:
                self.close()
                raise

    def request(self, method: str, path: str, body: Any = None, query: Optional[Mapping[str, Any]] = None,
                headers: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None) -> Any:
        """What the cloud answers: JSON as objects, anything else as text; ApiError when it refuses."""
        sent = None if body is None else json.dumps(body).encode()
        all_headers = self.headers(headers)
        if sent is not None:
            all_headers["Content-Type"] = "application/json"
        where = self.path(path, query)
        left = TRIES
        while True:
            try:
                answer, data = self._once(method, where, sent, all_headers, timeout or self.timeout)
            except (OSError, http.client.HTTPException) as e:
                raise VirgaError(f"cannot reach the cloud at {self.host}:{self.port}: {e or type(e).__name__}") from e
            left -= 1
            if answer.status not in _BUSY or not left or not answer.getheader("Retry-After"):
                break
            time.sleep(min(_WAIT_MOST_S, float(answer.getheader("Retry-After") or 1)))
        if answer.status >= 400:
            raise problem(answer, data)
        if (answer.getheader("Content-Type") or "").startswith("application/json"):
            return json.loads(data)
        return data.decode("utf-8", "replace")

    def stream(self, path: str, query: Optional[Mapping[str, Any]] = None) -> Iterator[Event]:
        """Server-sent events, until the cloud or the caller has enough. A silence longer than the cloud's own pings is an error."""
        connection = self.connect(self.timeout)
        try:
            connection.request("GET", self.path(path, query), headers=self.headers({"Accept": "text/event-stream"}))
            answer = connection.getresponse()
            if answer.status >= 400:
                raise problem(answer, answer.read(JSON_MOST))
            yield from parse_events(iter(lambda: answer.readline(LINE_MOST), b""))
        except (OSError, http.client.HTTPException) as e:
            raise VirgaError(f"the stream of {path} broke: {e or type(e).__name__}") from e
        finally:
            connection.close()

    def close(self) -> None:
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()


def parse_events(lines: Iterator[bytes]) -> Iterator[Event]:
    """Events out of a stream's lines."""
    kind = "message"
    data: List[str] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield Event(kind, json.loads("\n".join(data)))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def problem(answer: http.client.HTTPResponse, data: bytes) -> ApiError:
    """The exception of an answer that is none."""
    try:
        told = json.loads(data)
        return ApiError(answer.status, str(told.get("title") or answer.reason), str(told.get("detail") or ""), str(told.get("code") or ""))
    except (ValueError, AttributeError):
        return ApiError(answer.status, answer.reason, data[:500].decode("utf-8", "replace").strip())


def read_login(home: str) -> Dict[str, str]:
    """What `virga login` stored."""
    try:
        with open(os.path.join(home, "client"), encoding="utf-8") as f:
            return dict(line.rstrip("\n").split("=", 1) for line in f if "=" in line and not line.startswith("#"))
    except OSError:
        return {}
