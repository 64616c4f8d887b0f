"""What the end-to-end suites share: a cloud of one's own, a terminal to type into, and a look at what
is left on the machine when a cloud is gone. Standard library only."""
import atexit
import errno
import fcntl
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import weakref
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("VIRGA_BIN") or ROOT / "build" / "bin").resolve()


def seen_by_tasks():
    """A folder for files that tasks shall see: /tmp and /var/tmp are a task's own."""
    return Path("/srv") if os.access("/srv", os.W_OK) else Path.home()


def programs_for_all():
    """The folder of the programs, where every user can reach it: a copy when the build is below a closed folder."""
    if programs_for_all.folder is None:
        closed = [p for p in (BIN, *BIN.parents) if not p.stat().st_mode & 0o001]
        programs_for_all.folder = BIN
        if closed:
            programs_for_all.folder = Path(tempfile.mkdtemp(prefix="vg-bin-"))
            atexit.register(shutil.rmtree, programs_for_all.folder, ignore_errors=True)
            programs_for_all.folder.chmod(0o755)
            for program in BIN.iterdir():
                shutil.copy2(program, programs_for_all.folder)
    return programs_for_all.folder


programs_for_all.folder = None
LONG = bool(os.environ.get("VIRGA_TEST_LONG"))  # what is shown in make test by tens is shown by thousands
WAIT_S = float(os.environ.get("VIRGA_TEST_WAIT", "30"))  # how long an event may take on a loaded machine


def wait_for(what, condition, seconds=WAIT_S):
    """Waits until condition() is true and returns its value; fails with `what` otherwise."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.02)


def noted(cloud, text="", after=0):
    """What the audit log has of it, newest first; the program's answer has all that was done before it was asked."""
    found = cloud.json("audit", "list", "--limit", "1000", *(["--search", text] if text else []))["audit"]
    return [e for e in found if e["seq"] > after]


def read_bytes(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def status_field(pid, field):
    match = re.search(rb"^" + field.encode() + rb":\s*(.*)$", read_bytes(f"/proc/{pid}/status"), re.M)
    return match.group(1).decode() if match else None


def rss_kib(pid):
    value = status_field(pid, "VmRSS")
    return int(value.split()[0]) if value else 0


def children_of(pid):
    kids = []
    for tid in glob.glob(f"/proc/{pid}/task/*/children"):
        kids += [int(p) for p in read_bytes(tid).split()]
    return kids


def descendants_of(pid):
    found = []
    todo = [pid]
    while todo:
        kids = children_of(todo.pop())
        found += kids
        todo += kids
    return found


def mount_namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def root_mount(mountinfo):
    """Which file system is the root there."""
    return next((line.split()[2:4] for line in reversed(mountinfo.splitlines()) if line.split()[4:5] == [b"/"]), None)


def processes_of(home):
    """Every process, in whatever namespace, whose environment, command line or mounts name `home`. Mounts of who has our root
    say nothing: they are ours, or copies of what was ours when somebody made a namespace of his own."""
    needle = str(home).encode()
    mine = {os.getpid(), os.getppid()}
    here, root = mount_namespace("self"), root_mount(read_bytes("/proc/self/mountinfo"))
    found = []
    for pid in pids():
        if pid in mine:
            continue
        proc = f"/proc/{pid}/"
        if (needle in read_bytes(proc + "environ") or needle in read_bytes(proc + "cmdline")
                or (mount_namespace(pid) != here and needle in (mounts := read_bytes(proc + "mountinfo"))
                    and root_mount(mounts) != root)):
            found.append((pid, read_bytes(proc + "cmdline").replace(b"\0", b" ").decode(errors="replace")
                          or status_field(pid, "Name")))
    return found


def read_pid(path):
    text = read_bytes(path).split()
    return int(text[0]) if text else None


def cloud_tag(home):
    """The hex digits that this home's cgroups, links and tables carry (agent.c, make_tag)."""
    h = 2166136261
    for byte in os.fsencode(os.path.realpath(home)):
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{(h ^ h >> 24) & 0xFFFFFF:06x}"


class Cloud:
    """A cloud of one machine with a home of its own."""

    made = weakref.WeakSet()  # for whoever tells why a test failed

    def __init__(self, config=None, env=None):
        # Short: a unix socket's path has room for 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="vg-", dir="/tmp"))
        self.work = Path(tempfile.mkdtemp(prefix="vgw-", dir="/var/tmp"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("VIRGA_")}
        self.env.update({"VIRGA_HOME": str(self.home), "PATH": f"{BIN}:{self.env['PATH']}",
                         "LC_ALL": "C.UTF-8"})
        self.env.update(env or {})
        self.tag = cloud_tag(self.home)
        if config:
            (self.home / "config.yaml").write_text(config)
        Cloud.made.add(self)

    # ------------------------------------------------------------------ running things

    def popen(self, argv, **kw):
        kw.setdefault("cwd", self.work)
        kw.setdefault("env", self.env)
        for name in ("stdin", "stdout", "stderr"):
            kw.setdefault(name, subprocess.DEVNULL if name == "stdin" else subprocess.PIPE)
        return subprocess.Popen(argv, **kw)

    def run(self, argv, input=None, timeout=120, check=None, **kw):
        """Runs a program found in build/bin first; output as bytes. `check` is the status it must have."""
        kw.setdefault("cwd", self.work)
        kw.setdefault("env", self.env)
        if input is None:
            kw.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(argv, input=input, stdout=kw.pop("stdout", subprocess.PIPE),
                              stderr=kw.pop("stderr", subprocess.PIPE), timeout=timeout, **kw)
        if check is not None:
            assert done.returncode == check, f"{argv}: status {done.returncode}, not {check}\n" \
                f"{(done.stdout or b'').decode(errors='replace')}{(done.stderr or b'').decode(errors='replace')}"
        return done

    def vrun(self, *argv, **kw):
        return self.run(["vrun", *argv], **kw)

    def virga(self, *argv, **kw):
        return self.run(["virga", *argv], **kw)

    def json(self, *argv, **kw):
        """`virga ... -o json`, parsed."""
        return json.loads(self.virga(*argv, "-o", "json", check=0, **kw).stdout)

    def task(self, task_id):
        return self.json("task", "get", task_id)

    def wait_state(self, task_id, *states):
        return wait_for(f"task {task_id} to be {' or '.join(states)}",
                        lambda: (t := self.task(task_id))["state"] in states and t)

    def out(self, *argv, **kw):
        """Output of a program that must succeed, as text without the last newline."""
        return self.run(list(argv), check=0, **kw).stdout.decode().rstrip("\n")

    def sh(self, script, **kw):
        return self.run(["bash", "-c", script], **kw)

    # ------------------------------------------------------------------ life

    def up(self, *args, timeout=60):
        done = self.virga("up", *args, timeout=timeout)
        assert done.returncode == 0, f"virga up: {done.stderr.decode(errors='replace')}\n{self.logs()}"
        return done

    def down(self, timeout=60):
        return self.virga("down", timeout=timeout)

    def pid(self, which):
        return read_pid(self.home / {"virgad": "control/pid", "agent": "node/pid", "up": "up.pid"}[which])

    def logs(self, lines=30):
        parts = []
        for path in [*sorted((self.home / "log").glob("*.log")), *self.home.glob("agent.out")]:
            lines_of = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.name}\n" + "\n".join(lines_of))
        return "\n".join(parts)

    def remove(self):
        self.kill_leftovers()  # a file service that lives on would write into its home again
        self.forget_network()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def forget_network(self):
        """Gives back the subnet of a cloud that was not taken down: there are 64, and an agent finds its own by a mark (netpool.c)."""
        mark = 2166136261
        for byte in self.tag.encode():
            mark = (mark ^ byte) * 16777619 & 0xFFFFFFFF
        show = ["ip", "route", "show", "metric", str(mark | 1)]
        routes = subprocess.run(show, stdout=subprocess.PIPE, check=False).stdout.decode() if shutil.which("ip") else ""
        for route in routes.splitlines():
            subprocess.run(["ip", "route", "del", *route.split(), "metric", str(mark | 1)], check=False)
        if shutil.which("nft"):
            subprocess.run(["nft", "delete", "table", "ip", f"virga_{self.tag}"], stderr=subprocess.DEVNULL, check=False)

    def kill_leftovers(self):
        for _ in range(20):
            left = processes_of(self.home)
            if not left:
                return
            for pid, _name in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)

    def leftovers(self):
        """What a cloud that is down still has on this machine, in words."""
        found = [f"process {pid}: {name}" for pid, name in processes_of(self.home)]
        found += [f"mount {line.split()[4].decode(errors='replace')}"
                  for line in read_bytes("/proc/self/mountinfo").splitlines()
                  if str(self.home).encode() in line]
        for root, folders, _ in os.walk("/sys/fs/cgroup"):
            found += [f"cgroup {root}/{name}" for name in folders if self.tag in name]
        found += [f"link {name}" for name in os.listdir("/sys/class/net") if self.tag in name]
        if shutil.which("nft"):
            tables = subprocess.run(["nft", "list", "tables"], stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, check=False).stdout.decode()
            found += [f"nft {line}" for line in tables.splitlines() if self.tag in line]
        found += [f"socket {path}" for path in self.home.rglob("*") if path.is_socket()]
        found += [f"socket {line.split()[-1].decode()}" for line in read_bytes("/proc/net/unix").splitlines()
                  if str(self.home).encode() in line]
        return found


class Terminal:
    """A program on a real pseudo-terminal, and hands to type on it."""

    def __init__(self, argv, env, cwd, rows=24, cols=80, term="xterm"):
        self.seen = b""
        self.status = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
                os.execvpe(argv[0], argv, {**env, "TERM": term})
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send(self, data):
        os.write(self.fd, data if isinstance(data, bytes) else data.encode())

    def resize(self, rows, cols):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def _read(self, seconds):
        if not select.select([self.fd], [], [], max(0, seconds))[0]:
            return None
        try:
            return os.read(self.fd, 65536)
        except OSError as e:
            if e.errno == errno.EIO:  # the other side is gone
                return b""
            raise

    def expect(self, pattern, seconds=WAIT_S):
        """Reads until `pattern` (bytes regex) was printed; returns the match and forgets up to its end."""
        if isinstance(pattern, str):
            pattern = pattern.encode()
        end = time.monotonic() + seconds
        while True:
            match = re.search(pattern, self.seen)
            if match:
                self.seen = self.seen[match.end():]
                return match
            data = self._read(end - time.monotonic())
            if data is None:
                raise AssertionError(f"{pattern!r} was not printed within {seconds:.0f} s; the terminal shows "
                                     f"{self.seen[-2000:]!r}")
            if data == b"":
                raise AssertionError(f"{pattern!r} was not printed before the end; the terminal showed "
                                     f"{self.seen[-2000:]!r}")
            self.seen += data

    def rest(self, seconds=WAIT_S):
        """Everything printed until the program ended."""
        end = time.monotonic() + seconds
        while True:
            data = self._read(end - time.monotonic())
            if data is None:
                raise AssertionError(f"the program did not end; the terminal shows {self.seen[-2000:]!r}")
            if data == b"":
                break
            self.seen += data
        return self.seen

    def wait(self, seconds=WAIT_S):
        """Exit status as a shell has it (128+n for signals); reads what is printed meanwhile."""
        if self.status is None:
            self.rest(seconds)

            def ended():
                pid, raw = os.waitpid(self.pid, os.WNOHANG)
                return (raw,) if pid else None

            code = os.waitstatus_to_exitcode(wait_for("the end of the program", ended, seconds)[0])
            self.status = code if code >= 0 else 128 - code
        return self.status

    def close(self):
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        try:
            os.close(self.fd)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
