"""The port of people and programs, as clients that mean well, badly, or nothing at all find it: curl, raw sockets, ten thousand requests
on one connection."""
import os
import socket
import ssl
import subprocess
import urllib.parse

import pytest
from virga import Cloud, rss_kib, wait_for

CONFIG = """
limits:
  web_rate: 0
"""


@pytest.fixture(scope="module")
def port(cloud):
    return Port(cloud)


class Port:
    def __init__(self, cloud):
        self.url = cloud.json("status")["url"]
        self.ca = cloud.home / "control" / "ca.crt"
        self.address = ("127.0.0.1", urllib.parse.urlsplit(self.url).port)
        self.tls = ssl.create_default_context(cafile=str(self.ca))

    def dial(self):
        sock = socket.create_connection(self.address, 20)
        return self.tls.wrap_socket(sock, server_hostname="localhost")

    def say(self, data):
        """All that is answered to these bytes, until the server hangs up."""
        with self.dial() as s:
            s.sendall(data)
            return hear_all(s)

    def curl(self, *args):
        done = subprocess.run(["curl", "-sS", "--cacert", self.ca, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


def hear_all(sock):
    got = b""
    while True:
        try:
            piece = sock.recv(65536)
        except (ConnectionError, ssl.SSLEOFError):
            break
        if not piece:
            break
        got += piece
    return got


def hear_one(reader):
    """One answer with its length: (status, headers, body)."""
    status = int(reader.readline().split()[1])
    headers = {}
    while (line := reader.readline().strip()):
        name, value = line.split(b": ", 1)
        headers[name.decode().lower()] = value.decode()
    return status, headers, reader.read(int(headers.get("content-length", 0)))


def test_the_certificate_has_the_names_by_which_one_comes(port):
    for host in ("localhost", "127.0.0.1", socket.gethostname()):
        with socket.create_connection(port.address, 20) as sock, port.tls.wrap_socket(sock, server_hostname=host) as s:
            assert s.version() == "TLSv1.3" and s.selected_alpn_protocol() is None
    with socket.create_connection(port.address, 20) as sock, pytest.raises(ssl.SSLCertVerificationError):
        port.tls.wrap_socket(sock, server_hostname="elsewhere.example")


def test_curl_finds_what_it_expects(port):
    assert port.curl(port.url + "/healthz") == b"ok\n"
    both = port.curl("-w", "%{num_connects} ", port.url + "/healthz", port.url + "/healthz")
    assert both == b"ok\n1 ok\n0 ", "one connection for both"
    head = port.curl("-I", port.url + "/healthz").decode().lower()
    assert "content-length: 3\r\n" in head and "x-content-type-options: nosniff" in head and "strict-transport" not in head
    big = port.curl("-o", "/dev/null", "-w", "%{http_code}", "-H", "Expect: 100-continue", "--data-binary", "@-", port.url + "/api/v1/tasks")
    assert big == b"401"


def test_pages_of_the_dashboard_and_what_is_none(port):
    page = port.curl("-i", port.url + "/tasks/0123456789abcdef").decode()
    built = page.startswith("HTTP/1.1 200")
    assert "Content-Security-Policy: default-src 'none'; script-src 'self'" in page if built else "npm run build" in page
    assert port.curl("-o", "/dev/null", "-w", "%{http_code}", port.url + "/assets/none-12345678.js") == b"404"
    assert port.curl("-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", port.url + "/") == b"405"
    assert b"400" in port.say(b"GET /../control/ca.key HTTP/1.1\r\nHost: h\r\n\r\n").split(b"\r\n")[0]


def test_ten_thousand_requests_on_one_connection(cloud, port):
    before = rss_kib(cloud.pid("virgad"))
    with port.dial() as s, s.makefile("rb") as reader:
        for _ in range(100):
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 100)  # pipelined
            for _ in range(100):
                status, _, body = hear_one(reader)
                assert status == 200 and body == b"ok\n"
    assert rss_kib(cloud.pid("virgad")) - before < 8 << 10, "nothing is kept of them"


def test_what_breaks_the_rules_is_refused_and_hung_up_on(port):
    host = b"Host: h\r\n"
    table = [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\n" + host + b"\r\n", 505),
        (b"BREW / HTTP/1.1\r\n" + host + b"\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + host + b"x: " + b"y" * 20000, 431),
        (b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 99999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ]
    for data, status in table:
        answer = port.say(data)
        assert answer.startswith(b"HTTP/1.1 %d " % status) and b"Connection: close" in answer, (data[:60], answer[:60])
    with socket.create_connection(port.address, 20) as s:  # no TLS at all
        s.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not hear_all(s).startswith(b"HTTP/1.1 200")


def test_half_requests_and_idle_ones_are_in_nobodys_way(cloud, port):
    slow = [port.dial() for _ in range(200)]
    for i, s in enumerate(slow):
        s.sendall(b"GET /healthz HT" if i % 2 else b"POST /api/v1/tasks HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{")
    assert port.curl(port.url + "/healthz") == b"ok\n"
    assert cloud.out("vrun", "echo", "fine") == "fine"
    for s in slow:
        s.close()
    assert port.curl(port.url + "/healthz") == b"ok\n"


@pytest.mark.skipif(not os.environ.get("VIRGA_TEST_LONG"), reason="ten seconds of waiting: VIRGA_TEST_LONG=1 (the unit tests have it with shorter ones)")
def test_a_head_that_never_ends_is_ended(port):
    with port.dial() as s:
        s.settimeout(60)
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n")
        assert hear_all(s).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_does_not_read_costs_little(cloud, port):
    before = rss_kib(cloud.pid("virgad"))
    with port.dial() as s:
        s.settimeout(2)
        try:
            for _ in range(2000):  # far more answers than sockets hold
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n" * 50)
        except (socket.timeout, OSError):
            pass
        assert rss_kib(cloud.pid("virgad")) - before < 16 << 10
        assert port.curl(port.url + "/healthz") == b"ok\n"


def test_who_asks_too_much_is_told_when_to_come_again():
    other = Cloud("limits:\n  web_rate: 5\n  web_burst: 5\n")
    try:
        other.up()
        port = Port(other)
        with port.dial() as s, s.makefile("rb") as reader:
            statuses = []
            for _ in range(60):
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                status, headers, _ = hear_one(reader)
                statuses.append(status)
                assert status == 200 or int(headers["retry-after"]) >= 1
        assert statuses[:10] == [200] * 10 and 429 in statuses
    finally:
        assert other.down().returncode == 0
        other.remove()


def test_the_address_is_kept_and_can_be_off(make_cloud):
    cloud = make_cloud()
    cloud.up()
    url = cloud.json("status")["url"]
    assert cloud.virga("dashboard").stdout.decode().startswith(url + "/#code=")
    cloud.down()
    cloud.up()
    assert cloud.json("status")["url"] == url
    cloud.down()
    (cloud.home / "config.yaml").write_text("web: off\n")
    cloud.up()
    assert not cloud.json("status")["url"]
    done = cloud.virga("dashboard")
    assert done.returncode and b"serves no dashboard" in done.stderr


def test_a_certificate_of_ones_own(make_cloud, tmp_path):
    cert, key = tmp_path / "web.crt", tmp_path / "web.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout", key,
                    "-out", cert, "-subj", "/CN=cloud.example", "-addext", "subjectAltName=DNS:cloud.example"], check=True, stderr=subprocess.DEVNULL)
    cloud = make_cloud(f"web: 127.0.0.1:0\nweb_cert: {cert}\nweb_key: {key}\n")
    cloud.up()
    port = Port(cloud)
    tls = ssl.create_default_context(cafile=str(cert))
    with socket.create_connection(port.address, 20) as sock, tls.wrap_socket(sock, server_hostname="cloud.example") as s, s.makefile("rb") as reader:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        _, headers, _ = hear_one(reader)
        assert "strict-transport-security" in headers
    cloud.down()
    (cloud.home / "config.yaml").write_text(f"web: 127.0.0.1:0\nweb_cert: {cert}\n")
    done = cloud.virga("up")
    assert done.returncode and b"web_cert and web_key belong together" in done.stderr


def test_one_address_does_not_have_all_connections_of_the_wire(cloud):
    """Who does not say who he is has so many at once, and no more; everybody else is served meanwhile."""
    host, number = cloud.json("status")["address"].rsplit(":", 1)
    dialed = []
    try:
        for _ in range(700):
            dialed.append(socket.create_connection((host, int(number)), 20))

        wait_for("connections beyond the limit to be closed", lambda: sum(hung_up(s) for s in dialed) >= 700 - 520)
        cloud.virga("status", check=0)
        cloud.vrun("true", check=0)
    finally:
        for s in dialed:
            s.close()


def hung_up(s):
    try:
        s.setblocking(False)
        return s.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
