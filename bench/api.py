"""What bench/run api runs: the REST interface under load, beside servers that do less. One JSON object a line.

    bench/api.py [--quick]      VIRGA_HOME names a cloud whose limits.web_rate is 0, that takes a million tasks of a user, and which has a pool `later` without nodes

Requests come from wrk over TLS on kept connections, all on this machine: client and server share its processors. Rounds are interleaved.
"""
import asyncio
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

HOME = os.environ["VIRGA_HOME"]
CA = os.path.join(HOME, "control", "ca.crt")
PG = next((d for d in ("/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/16/bin", "/usr/bin") if os.path.exists(os.path.join(d, "pgbench"))), None)
STATIC_SERVER = """
import http.server, ssl, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "3"); self.end_headers(); self.wfile.write(b"ok\\n"); self.wfile.flush()
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain(sys.argv[1], sys.argv[2])
s.socket = c.wrap_socket(s.socket, server_side=True)
print(s.server_address[1], flush=True); s.serve_forever()
"""


def emit(**fields):
    print(json.dumps({"bench": "api", **fields}), flush=True)


def median(values):
    return sorted(values)[len(values) // 2]


def virga(*argv):
    return subprocess.run(["virga", *argv], stdout=subprocess.PIPE, check=True).stdout.decode().strip()


def proc(pid):
    """(resident KiB, CPU seconds)"""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        rss = int(re.search(r"VmRSS:\s*(\d+)", f.read())[1])
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return rss, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class World:
    def __init__(self):
        status = json.loads(virga("status", "-o", "json"))
        self.url, self.pid = status["url"], status["pid"]
        self.host = urllib.parse.urlsplit(self.url)
        self.token = virga("token", "create", "--name", "bench")
        self.tls = ssl.create_default_context(cafile=CA)

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + "/api/v1" + path, json.dumps(body).encode() if body is not None else None,
                                         {"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, context=self.tls, timeout=60) as answer:
            data = answer.read()
        return json.loads(data) if data else None


# ---------------------------------------------------------------------- requests a second

def wrk(seconds, conns, url, headers=(), script=None):
    argv = ["wrk", "-t1", f"-c{conns}", f"-d{seconds}", "--latency", *(a for h in headers for a in ("-H", h)), *(["-s", script] if script else []), url]
    text = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout.decode()
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    scale = {"us": 1e-3, "ms": 1, "s": 1e3}
    p99 = re.search(r"99%\s+([0-9.]+)(us|ms|s)", text)
    return {"per_s": float(re.search(r"Requests/sec:\s*([0-9.]+)", text)[1]), "n": int(re.search(r"(\d+) requests in", text)[1]),
            "failed": int(failed[1]) if failed else 0, "p99_ms": float(p99[1]) * scale[p99[2]]}


def measure(candidates, rounds):
    """candidates: {name: (function, pid or None)}; medians, each round one after the other."""
    got = {}
    for _ in range(rounds):
        for name, (run, pid) in candidates.items():
            before = proc(pid)[1] if pid else 0
            one = run()
            one["cpu_us"] = (proc(pid)[1] - before) / max(one["n"], 1) * 1e6 if pid else None
            got.setdefault(name, []).append(one)
    for name, all_of in got.items():
        cpu = [o["cpu_us"] for o in all_of if o["cpu_us"] is not None]
        yield name, {"per_s": round(median([o["per_s"] for o in all_of])), "best_per_s": round(max(o["per_s"] for o in all_of)),
                     "p99_ms": round(median([o["p99_ms"] for o in all_of]), 2) if all_of[0]["p99_ms"] else None, "failed": sum(o["failed"] for o in all_of),
                     "server_cpu_us_each": round(median(cpu), 1) if cpu else None, "rounds": len(all_of)}


@contextlib.contextmanager
def python_server():
    argv = [sys.executable, "-c", STATIC_SERVER, os.path.join(HOME, "control", "web.crt"), os.path.join(HOME, "control", "web.key")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as p:
        try:
            yield f"https://127.0.0.1:{int(p.stdout.readline())}/", p.pid
        finally:
            p.kill()


@contextlib.contextmanager
def nginx(folder):
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not os.path.exists(program):
        yield None, "nginx is not installed"
        return
    port = 20000 + os.getpid() % 20000
    conf = os.path.join(folder, "nginx.conf")
    with open(conf, "w", encoding="utf-8") as f:
        f.write(f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error;\nevents {{}}\nhttp {{ access_log off; keepalive_requests 100000000;\n"
                f"server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {HOME}/control/web.crt; ssl_certificate_key {HOME}/control/web.key;\n"
                f"location / {{ return 200 'ok\\n'; }} }} }}\n")
    with subprocess.Popen([program, "-c", conf], stderr=subprocess.DEVNULL) as p:
        time.sleep(0.5)
        try:
            yield (f"https://127.0.0.1:{port}/", p.pid) if p.poll() is None else (None, "nginx does not start here")
        finally:
            p.kill()


def gets(world, quick, folder):
    task = world.ask("/tasks", {"argv": ["true"], "name": "bench"})["id"]
    world.ask(f"/tasks/{task}/wait?timeout=30")
    seconds, rounds = (2, 1) if quick else (4, 5)
    auth = [f"Authorization: Bearer {world.token}"]
    with python_server() as (url, pid), nginx(folder) as (nginx_url, nginx_pid):
        candidates = {f"virgad {path}": ((lambda p=path: wrk(seconds, 32, world.url + p, auth)), world.pid)
                      for path in ("/api/v1/me", f"/api/v1/tasks/{task}", "/healthz")}
        candidates["python http.server, 3 bytes"] = ((lambda: wrk(seconds, 32, url)), pid)
        if nginx_url:
            candidates["nginx, 3 bytes, one process"] = ((lambda: wrk(seconds, 32, nginx_url)), nginx_pid)
        else:
            emit(what="get", of="nginx", skipped=nginx_pid)
        for name, fields in measure(candidates, rounds):
            emit(what="get", of=name.replace(task, "{id}"), connections=32, **fields)


# ---------------------------------------------------------------------- durable submissions

@contextlib.contextmanager
def postgres(folder):
    """PostgreSQL as it comes (each commit reaches the disk), on a unix socket; yields a function of seconds, or a reason."""
    if not PG or subprocess.run(["id", "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
        yield None, "PostgreSQL with pgbench is not installed"
        return
    data = os.path.join(folder, "pg")
    os.makedirs(data)
    shutil.chown(data, "postgres")
    os.chmod(folder, 0o755)
    asked = {"user": "postgres", "cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    script = os.path.join(folder, "insert.sql")
    with open(script, "w", encoding="utf-8") as f:
        f.write("INSERT INTO tasks (argv, state) VALUES ('{true}', 'queued');\n")
    try:
        subprocess.run([f"{PG}/initdb", "-D", data, "-A", "trust"], check=True, **asked)
        subprocess.run([f"{PG}/pg_ctl", "-D", data, "-w", "-o", f"-k {data} -c listen_addresses=", "-l", f"{data}/log", "start"], check=True, **asked)
        subprocess.run([f"{PG}/psql", "-h", data, "-c", "CREATE TABLE tasks (id bigserial PRIMARY KEY, argv text[], state text, made timestamptz DEFAULT now())"],
                       check=True, **asked)
    except (OSError, subprocess.CalledProcessError) as e:
        yield None, f"PostgreSQL does not start here: {e}"
        return

    def run(seconds, clients):
        argv = [f"{PG}/pgbench", "-h", data, "-n", "-f", script, "-c", str(clients), "-j", "1", "-T", str(seconds), "postgres"]
        text = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, user="postgres", cwd="/").stdout.decode()
        n = int(re.search(r"transactions actually processed: (\d+)", text)[1])
        return {"per_s": float(re.search(r"tps = ([0-9.]+)", text)[1]), "n": n, "failed": 0, "p99_ms": None}
    try:
        yield run, None
    finally:
        subprocess.run([f"{PG}/pg_ctl", "-D", data, "-m", "immediate", "stop"], check=False, **asked)


def submissions(world, quick, folder):
    script = os.path.join(folder, "post.lua")
    with open(script, "w", encoding="utf-8") as f:
        f.write('wrk.method="POST"; wrk.body=\'{"argv":["true"],"pool":"later"}\'; wrk.headers["Content-Type"]="application/json"\n')
    seconds, rounds = (2, 1) if quick else (4, 5)
    auth = [f"Authorization: Bearer {world.token}"]
    begin = json.loads(virga("status", "-o", "json"))["queued"]
    sent = []

    def post():
        one = wrk(seconds, 64, world.url + "/api/v1/tasks", auth, script)
        sent.append(one["n"])
        return one
    with postgres(folder) as (insert, why):
        candidates = {"virgad POST /tasks": (post, world.pid)}
        if insert:
            candidates["postgres, an insert a transaction"] = ((lambda: insert(seconds, 64)), None)
        else:
            emit(what="submit", of="postgres", skipped=why)
        for name, fields in measure(candidates, rounds):
            emit(what="submit", of=name, connections=64, **fields)
    queued = json.loads(virga("status", "-o", "json"))["queued"] - begin
    emit(what="submitted", answered=sum(sent), queued=queued, rss_kib=proc(world.pid)[0])


# ---------------------------------------------------------------------- streams and terminals at once

async def stream(world, want, heard):
    """An event stream that counts itself in `heard` when it was told of the task `want` holds."""
    reader, writer = await asyncio.open_connection(world.host.hostname, world.host.port, ssl=world.tls, limit=1 << 20)
    writer.write(f"GET /api/v1/events?topics=tasks,status HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {world.token}\r\n\r\n".encode())
    first = await reader.readline()
    heard["open"] += first.startswith(b"HTTP/1.1 200")
    with contextlib.closing(writer):
        while (line := await reader.readline()):
            if line.startswith(b"data: ") and want and want[0] in line and b'"state":"succeeded"' in line:
                heard["told"] += 1
                heard["last"] = time.monotonic()


async def terminal(world, task, ready, go, echoed):
    reader, writer = await asyncio.open_connection(world.host.hostname, world.host.port, ssl=world.tls, limit=1 << 20)
    writer.write(f"GET /api/v1/tasks/{task}/attach?rows=24&cols=80 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {world.token}\r\nUpgrade: websocket\r\n"
                 "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    ready.append(task)
    await go.wait()
    begin = time.monotonic()
    text = b"echo typed$((40+2))\n"
    writer.write(bytes([0x82, 0x80 | len(text), 0, 0, 0, 0]) + text)
    got = b""
    with contextlib.closing(writer):
        while b"typed42" not in got:
            got += await reader.read(65536)
        echoed.append(time.monotonic() - begin)
        await asyncio.sleep(3600)


async def live(world, quick):
    streams, terminals = (200, 20) if quick else (1000, 200)
    before = proc(world.pid)[0]
    shells = [world.ask("/tasks", {"argv": ["sh"], "tty": {"rows": 24, "cols": 80}, "stdin_open": True})["id"] for _ in range(terminals)]
    heard, want, ready, echoed, go = {"open": 0, "told": 0, "last": 0}, [], [], [], asyncio.Event()
    tasks = [asyncio.create_task(terminal(world, s, ready, go, echoed)) for s in shells]
    tasks += [asyncio.create_task(stream(world, want, heard)) for _ in range(streams)]

    async def until(what, seconds=120):
        end = time.monotonic() + seconds
        while not what() and time.monotonic() < end:
            await asyncio.sleep(0.05)
    await until(lambda: heard["open"] == streams and len(ready) == terminals)
    await asyncio.sleep(2)
    opened = proc(world.pid)[0]
    go.set()
    await until(lambda: len(echoed) == terminals)
    begin = time.monotonic()
    one = await asyncio.to_thread(world.ask, "/tasks", {"argv": ["true"]})
    want.append(one["id"].encode())
    await asyncio.to_thread(world.ask, f"/tasks/{one['id']}/wait?timeout=30")
    ended = time.monotonic()
    await until(lambda: heard["told"] == streams, 30)
    cpu = proc(world.pid)[1]
    await asyncio.sleep(5)
    cpu = (proc(world.pid)[1] - cpu) / 5
    during = proc(world.pid)[0]
    for t in tasks:
        t.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(world.ask, "/tasks/cancel", {"matching": {"state": ["running"]}, "grace_usec": 1})
    await asyncio.sleep(5)
    emit(what="live", streams=heard["open"], terminals=len(ready), told=heard["told"], task_ms=round((ended - begin) * 1e3), all_told_after_ms=round((heard["last"] - ended) * 1e3),
         echoed=len(echoed), echo_ms_median=round(median(echoed) * 1e3, 1) if echoed else None, idle_cpu_percent=round(cpu * 100, 1), rss_before_kib=before, rss_open_kib=opened,
         rss_during_kib=during, rss_after_kib=proc(world.pid)[0], kib_each=round((during - before) / (streams + terminals), 1))


def main():
    quick = "--quick" in sys.argv
    world = World()
    emit(what="machine", cpus=len(os.sched_getaffinity(0)), load=[round(x, 1) for x in os.getloadavg()], quick=quick)
    with tempfile.TemporaryDirectory(prefix="vgbench-api-", dir="/var/tmp") as folder:
        if shutil.which("wrk"):
            gets(world, quick, folder)
        else:
            emit(what="get", skipped="wrk is not installed")
        asyncio.run(live(world, quick))
        if shutil.which("wrk"):
            submissions(world, quick, folder)
        else:
            emit(what="submit", skipped="wrk is not installed")


if __name__ == "__main__":
    main()
