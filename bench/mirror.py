"""bench/run mirror: a command typed on one machine, its files used on another, across a line with a round-trip time.

Client and node are two network namespaces of this machine, joined by src/delay-line.c. What is compared:

    native   the command where the files are
    virga    vrun: `first` (a node that has nothing, a command that was never run), `elsewhere` (a command that was
             run before, on another node than this one, which has nothing), `cold` (the same after a rest: the client's
             file service has left, too), `warm` (again), `start` (warm, and the program is `true`), `own` (the same vrun on
             the node's own files: nothing is mirrored, and no connection was made ready ahead)
    sshfs    the client's root mounted on the node, every cache on and as long as it goes; chroot into it
    rsync    exactly the files that the command uses (it is told them for nothing), then chroot into them;
             `--whole`: all of /usr besides, as one must who does not know them

Bytes are counted by the line itself, alike for all; demand round trips by the node's file daemon.

`start` is what every command pays; `warm` less that, beside native, is what mirrored files cost a program."""
import argparse
import ctypes
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from mirror_peers import BIN, CLIENT, Native, Rsync, Ssh, Sshfs, Virga, call, lacks, must

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IMPORTS = "import json, ssl, sqlite3, asyncio, unittest, email, http.server, xml.dom.minidom"


def emit(**fields):
    print(json.dumps(fields), flush=True)


# ---------------------------------------------------------------------- the line


class Line:
    """Two network namespaces and what lies between them."""

    def __init__(self, folder):
        program = os.path.join(folder, "delay-line")
        must(["cc", "-O2", "-D_GNU_SOURCE", "-o", program, os.path.join(ROOT, "bench/src/delay-line.c"), "-pthread"])
        self.names = [f"vgm{os.getpid() % 100000}{end}" for end in "ab"]
        for name in self.names:
            must(["ip", "netns", "add", name])
        self.p = subprocess.Popen([program, *self.names, "0", "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, bufsize=1)
        if self.p.stdout.readline() != "ready\n":
            raise RuntimeError("the delay line did not come up")

    def tell(self, text):
        self.p.stdin.write(text + "\n")
        answer = self.p.stdout.readline().strip()
        if answer in ("", "what?"):
            raise RuntimeError(f"delay-line: {text}: {answer}")
        return answer

    def bytes(self):
        """Bytes from the client to the node, and back."""
        fields = self.tell("counts").split()
        return int(fields[0]), int(fields[2])

    def at(self, end, argv):
        return ["nsenter", f"--net=/run/netns/{self.names[end]}", "--", *argv]

    def client(self, *argv):
        return self.at(0, list(argv))

    def node(self, *argv):
        return self.at(1, list(argv))

    def close(self):
        self.p.stdin.close()
        self.p.wait()
        for name in self.names:
            call(["ip", "netns", "del", name])


# ---------------------------------------------------------------------- what is run


class Case:
    """A command and the folder of the client it is typed in."""

    def __init__(self, name, argv, folder, make=None, result=None):
        self.name, self.argv, self.folder, self.result = name, argv, folder, result
        os.makedirs(folder)
        if make:
            make(folder)
        self.open_to_all()

    def open_to_all(self):
        """On its own files a node knows the person only as nobody."""
        for path in (self.folder, os.path.join(self.folder, self.result or "")):
            if os.path.isdir(path):
                os.chmod(path, 0o777)

    def reset(self):
        """What an earlier run wrote."""
        if self.result:
            path = os.path.join(self.folder, self.result)
            if os.path.isdir(path) and self.name == "untar":
                shutil.rmtree(path)
                os.mkdir(path)
                self.open_to_all()
            elif os.path.exists(path):
                os.unlink(path)

    def right(self):
        """'' or what is wrong with what was left at the client."""
        if not self.result:
            return ""
        path = os.path.join(self.folder, self.result)
        if self.name == "untar":
            found = sum(len(files) for _, _, files in os.walk(path))
            return "" if found == self.files else f"{found} of {self.files} files arrived"
        return "" if os.path.exists(path) and os.path.getsize(path) > 0 else "no result arrived"


def make_source(folder):
    with open(os.path.join(folder, "t.c"), "w", encoding="ascii") as f:
        f.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
                "int main(int c, char **v) { char *s = strdup(c > 1 ? v[1] : \"\"); puts(s); free(s); return 0; }\n")


def make_tree(folder, files, size):
    """`files` files in folders of 25, with content of about `size` bytes that differs."""
    for i in range(files):
        where = os.path.join(folder, f"d{i // 1000:03}", f"e{i // 25 % 40:02}")
        if i % 25 == 0:
            os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, f"f{i:06}.txt"), "wb") as f:
            f.write((f"file {i}\n" * (1 + size // (7 + len(str(i)))))[:size + i % 97].encode())


def make_repository(files):
    def make(folder):
        make_tree(folder, files, 300)
        for argv in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"], ["status", "--porcelain"]):
            must(["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-C", folder, *argv])
    return make


def make_archive(files):
    def make(folder):
        os.mkdir(os.path.join(folder, "out"))
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as tmp:
            make_tree(tmp, files, 2000)
            must(["tar", "-C", tmp, "-cf", os.path.join(folder, "files.tar"), "."])
    return make


def make_big(size):
    def make(folder):
        with open(os.path.join(folder, "big"), "wb") as f:
            for _ in range(size >> 20):
                f.write(os.urandom(1 << 20))
    return make


def ml_import():
    """The heaviest of these that is installed."""
    for name in ("torch", "pandas", "scipy.stats", "numpy"):
        if call(["/usr/bin/python3", "-E", "-c", f"import {name}"]).returncode == 0:
            return name
    return None


def make_cases(folder, wanted, quick):
    files, size = (5000, 128 << 20) if quick else (20_000, 1 << 30)
    ml = ml_import() if "ml" in wanted else None
    table = {
        "py": (["/usr/bin/python3", "-E", "-c", IMPORTS], None, None),
        "gcc": (["/usr/bin/gcc", "-O1", "-c", "-o", "t.o", "t.c"], make_source, "t.o"),
        "git": (["/usr/bin/git", "status", "--porcelain"], make_repository(files), None),
        "ml": (["/usr/bin/python3", "-E", "-c", f"import {ml}"], None, None),
        "read": (["/usr/bin/dd", "if=big", "of=/dev/null", "bs=1M", "status=none"], make_big(size), None),
        "untar": (["/usr/bin/tar", "-xf", "files.tar", "-C", "out"], make_archive(files), "out"),
    }
    cases = []
    for name in wanted:
        if name == "ml" and not ml:
            emit(bench="mirror", case="ml", skipped="neither torch, pandas, scipy nor numpy is installed")
            continue
        argv, make, result = table[name]
        case = Case(name, argv, os.path.join(folder, name), make, result)
        case.files = files
        case.detail = {"ml": ml, "read": size, "git": files, "untar": files}.get(name)
        cases.append(case)
    return cases


def base_env():
    return {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LC_ALL": "C.UTF-8", "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "PYTHONDONTWRITEBYTECODE": "1"}


# ---------------------------------------------------------------------- the run


class Bench:
    def __init__(self, args):
        self.args = args
        self.limit = args.limit
        self.env = base_env()
        self.rows = {}
        self.folder = tempfile.mkdtemp(prefix="vgm-", dir="/var/tmp")
        os.chmod(self.folder, 0o755)
        self.line = self.ssh = None
        self.peers = []

    def open(self):
        self.line = Line(self.folder)
        os.mkdir(os.path.join(self.folder, "ssh"))
        makers = {"native": Native, "virga": Virga, "sshfs": Sshfs, "rsync": Rsync,
                  "rsync-usr": lambda b: Rsync(b, whole=True)}
        names = self.args.peers + (["rsync-usr"] if self.args.whole else [])
        kinds = {"sshfs": Sshfs, "rsync": Rsync, "rsync-usr": Rsync}
        for name in names:
            missing = lacks(kinds[name]) if name in kinds else None
            if missing:
                emit(bench="mirror", peer=name, skipped=f"{missing} is not installed (tools/bootstrap bench)")
                continue
            if name in kinds and not self.ssh:
                self.ssh = Ssh(self.line, os.path.join(self.folder, "ssh"))
            self.peers.append(makers[name](self))

    def rtt_seen(self):
        """What a connection takes across the line: one round trip of the kernels'."""
        code = ("import socket,time\nb=[]\nfor _ in range(9):\n t=time.monotonic()\n"
                f" try: socket.create_connection(('{CLIENT}', 9), 5)\n except ConnectionRefusedError: pass\n"
                " b.append(time.monotonic()-t)\nprint(sorted(b)[4]*1000)")
        return round(float(must(self.line.node("python3", "-c", code))), 2)

    def run(self):
        cases = make_cases(self.folder + "/work", self.args.cases, self.args.quick)
        for rtt in self.args.rtt:
            self.line.tell(f"set {int(rtt * 1000)} {self.args.mbit}")
            emit(bench="mirror-line", rtt_ms=rtt, mbit=self.args.mbit, rtt_seen_ms=self.rtt_seen())
            for n in range(self.args.rounds):
                for case in cases:
                    for peer in self.peers:
                        if n and peer.name in ("sshfs", "rsync", "rsync-usr") and not self.args.even:
                            continue
                        self.measure(rtt, case, peer)

    def measure(self, rtt, case, peer):
        case.reset()
        for state, fields in peer.measure(case):
            wrong = "" if "failed" in fields or state == "start" else case.right()
            if wrong:
                fields["failed"] = wrong
            self.rows.setdefault((rtt, case.name, peer.name, state), []).append(fields)
            emit(bench="mirror", rtt_ms=rtt, case=case.name, detail=case.detail, peer=peer.name, state=state, **fields)

    def median(self, *key):
        good = [f["ms"] for f in self.rows.get(key, []) if "failed" not in f]
        return statistics.median(good) if good else None

    def table(self):
        """For people, on stderr; and one object a case with what the numbers come to."""
        say = lambda *a: print(*a, file=sys.stderr)
        columns = [("native", "warm"), ("virga", "first"), ("virga", "elsewhere"), ("virga", "cold"), ("virga", "warm"), ("virga", "start"), ("virga", "own"),
                   ("sshfs", "first"), ("sshfs", "warm"), ("rsync", "first"), ("rsync", "warm"), ("rsync-usr", "first")]
        columns = [c for c in columns if any(k[2:] == c for k in self.rows)]
        say("\nmedian ms".ljust(13) + "".join(f"{p} {s}".rjust(16) for p, s in columns) + "   trips elsewhere/warm")
        for rtt, case in dict.fromkeys(k[:2] for k in self.rows):
            cells = []
            for column in columns:
                value = self.median(rtt, case, *column)
                runs = self.rows.get((rtt, case, *column), [])
                stopped = any(f.get("failed", "").startswith("stopped") for f in runs)
                cells.append(f"{value:.0f}" if value is not None else
                             f"> {self.limit * 1000}" if stopped else "failed" if runs else "-")
            trips = [max((f["trips"] for f in self.rows.get((rtt, case, "virga", s), []) if "trips" in f),
                           default=None) for s in ("elsewhere", "warm")]
            say(f"{rtt:g} ms {case}".ljust(12) + "".join(c.rjust(16) for c in cells) + f"   {trips[0]}/{trips[1]}")
            self.summary(rtt, case, trips)

    def summary(self, rtt, case, trips):
        native, *mirrored = (self.median(rtt, case, *k) for k in (("native", "warm"), *(
            ("virga", state) for state in ("elsewhere", "cold", "warm", "start", "own"))))
        elsewhere, cold, warm, start, own = mirrored
        best = min((m for m in (self.median(rtt, case, p, "first") for p in ("sshfs", "rsync")) if m), default=None)
        ratio = lambda a, b: round(a / b, 2) if a and b else None
        less = lambda a, b: round(a - b, 1) if a and b else None
        emit(bench="mirror-summary", rtt_ms=rtt, case=case, elsewhere_ms=elsewhere, cold_ms=cold, warm_ms=warm, own_ms=own,
             native_ms=native, start_ms=start, warm_over_own=ratio(warm, own),
             program_over_native=ratio(less(warm, start), native), warm_over_native=ratio(warm, native),
             best_peer_over_elsewhere=ratio(best, elsewhere), best_peer_over_cold=ratio(best, cold),
             trips_elsewhere=trips[0], trips_warm=trips[1])

    def close(self):
        for peer in self.peers:
            if hasattr(peer, "close"):
                peer.close()
        if self.ssh:
            self.ssh.close()
        if self.line:
            self.line.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def words(kind=str):
    return lambda text: [kind(w) for w in text.split(",")]


def main(argv, quick):
    parser = argparse.ArgumentParser(prog="bench/run mirror", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", type=words(float), default=[10.0] if quick else [10.0, 1.0, 50.0], metavar="MS,...")
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1 if quick else 5)
    parser.add_argument("--cases", type=words(), default=["py", "gcc", "git", "ml", "read", "untar"])
    parser.add_argument("--peers", type=words(), default=["native", "virga", "sshfs", "rsync"])
    parser.add_argument("--limit", type=int, default=60 if quick else 120, help="seconds after which a run is stopped")
    parser.add_argument("--whole", action="store_true", help="also rsync all of /usr")
    parser.add_argument("--even", action="store_true", help="sshfs and rsync in every round, too")
    parser.add_argument("--quick", action="store_true", help="less of everything, for a first look")
    args = parser.parse_args(argv)
    # Mounts of the peers are this bench's alone.
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:
        raise SystemExit("bench: a mount namespace of its own needs root")
    must(["mount", "--make-rprivate", "/"])
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever stops it wants nothing left behind
        signal.signal(number, lambda *_: sys.exit(1))
    bench = Bench(args)
    try:
        bench.open()
        bench.run()
        bench.table()
    finally:
        bench.close()
