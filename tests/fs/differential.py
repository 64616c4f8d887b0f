#!/usr/bin/env python3
"""Random file operations on a mirrored folder and on a plain one: same results, errno for errno.

    differential.py [--seed N] [--ops N] [--cuts] [--restarts] [--trouble X] [--try PROGRAM]

Without VIEW in the environment it makes a scratch folder and starts itself under proj-try. Every operation
is done on both sides and must give the same; at the end the node's view, the client's folder and the plain one must be the same
tree: kinds, modes, sizes, link counts, contents, targets, extended attributes; and the view and the client agree on every mtime.
--cuts breaks the link now and then; --restarts kills the file service, too; --trouble makes both more frequent. A failure prints the seed
that makes it again.
"""
import argparse
import ctypes
import errno
import hashlib
import mmap
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
NAMES = ["a", "b", "c", "d", "e", "long" + "x" * 251, "toolong" + "x" * 249]
WEIGHTS = [8, 8, 8, 6, 6, 1, 0.3]
XATTRS = ["user.one", "user.two", "user.three"]
NOREPLACE, EXCHANGE = 1, 2
KEEP, PUNCH, ZERO = 1, 2, 16
FALLOCATE = []  # modes, see can_allocate


def call(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result


class Side:
    """One of the two folders: operations by path below it, and its open files by slot."""

    def __init__(self, top):
        self.top = top
        self.fd = {}

    def p(self, rel):
        return os.path.join(self.top, rel)

    def open(self, slot, rel, flags, mode):
        self.fd[slot] = os.open(self.p(rel), flags, mode)

    def tmpfile(self, slot, rel):
        self.fd[slot] = os.open(self.p(rel), os.O_TMPFILE | os.O_RDWR, 0o640)

    def linkfd(self, slot, rel):
        at, follow = -100, 0x400  # Python's own does not follow
        call(libc.linkat(at, f"/proc/self/fd/{self.fd[slot]}".encode(), at, os.fsencode(self.p(rel)), follow))

    def close(self, slot):
        os.close(self.fd.pop(slot))

    def read(self, slot, n, off):
        return hashlib.sha1(os.pread(self.fd[slot], n, off)).hexdigest()

    def write(self, slot, data):
        return os.write(self.fd[slot], data)

    def pwrite(self, slot, data, off):
        return os.pwrite(self.fd[slot], data, off)

    def seek(self, slot, off, whence):
        if stat.S_ISDIR(os.fstat(self.fd[slot]).st_mode):
            return "a folder"  # positions in folders are each file system's own
        return os.lseek(self.fd[slot], off, whence)

    def ftruncate(self, slot, n):
        os.ftruncate(self.fd[slot], n)

    def truncate(self, rel, n):
        os.truncate(self.p(rel), n)

    def fstat(self, slot):
        return self.shown(os.fstat(self.fd[slot]))

    def fsync(self, slot):
        os.fsync(self.fd[slot])

    def fchmod(self, slot, mode):
        os.fchmod(self.fd[slot], mode)

    def fallocate(self, slot, mode, off, n):
        call(libc.fallocate(self.fd[slot], mode, ctypes.c_long(off), ctypes.c_long(n)))

    def map(self, slot, off, data):
        st = os.fstat(self.fd[slot])
        size = st.st_size
        if stat.S_ISDIR(st.st_mode):
            return "a folder"  # as are their sizes
        if size < off + len(data):
            return "short"
        with mmap.mmap(self.fd[slot], size) as m:
            old = bytes(m[off:off + len(data)])
            m[off:off + len(data)] = data
        return hashlib.sha1(old).hexdigest()

    def copy(self, slot, other, n):
        return os.copy_file_range(self.fd[slot], self.fd[other], n, 0, 0)

    def mkdir(self, rel, mode):
        os.mkdir(self.p(rel), mode)

    def mkfifo(self, rel):
        os.mkfifo(self.p(rel), 0o600)

    def rmdir(self, rel):
        os.rmdir(self.p(rel))

    def unlink(self, rel):
        os.unlink(self.p(rel))

    def rename(self, a, b, flags):
        at = -100
        call(libc.renameat2(at, os.fsencode(self.p(a)), at, os.fsencode(self.p(b)), flags))

    def link(self, a, b):
        os.link(self.p(a), self.p(b), follow_symlinks=False)

    def symlink(self, target, rel):
        os.symlink(target, self.p(rel))

    def readlink(self, rel):
        return os.readlink(self.p(rel))

    def chmod(self, rel, mode):
        os.chmod(self.p(rel), mode)

    def utime(self, rel, ns):
        os.utime(self.p(rel), ns=(ns, ns), follow_symlinks=False)
        return os.lstat(self.p(rel)).st_mtime_ns

    @staticmethod
    def shown(st):
        return (oct(st.st_mode), st.st_nlink, None if stat.S_ISDIR(st.st_mode) else st.st_size)

    def stat(self, rel, follow):
        return self.shown(os.stat(self.p(rel), follow_symlinks=follow))

    def list(self, rel):
        return sorted(os.listdir(self.p(rel)))

    def setxattr(self, rel, name, value, flags):
        os.setxattr(self.p(rel), name, value, flags, follow_symlinks=False)

    def getxattr(self, rel, name):
        return os.getxattr(self.p(rel), name, follow_symlinks=False)

    def listxattr(self, rel):
        return sorted(x for x in os.listxattr(self.p(rel), follow_symlinks=False) if x.startswith("user."))

    def removexattr(self, rel, name):
        os.removexattr(self.p(rel), name, follow_symlinks=False)

    def contents(self, rel):
        with open(self.p(rel), "rb", opener=lambda p, f: os.open(p, f | os.O_NONBLOCK)) as f:  # a fifo has no end
            return hashlib.sha1(f.read() or b"").hexdigest()  # a fifo with a writer has nothing yet


class Walk:
    """What to do next: seeded, so that a failure can be had again."""

    def __init__(self, seed, plain):
        self.r = random.Random(seed)
        self.slots = set()
        self.plain = plain

    def anywhere(self):
        return "/".join(self.r.choices(NAMES, WEIGHTS, k=self.r.choices([1, 2, 3], [5, 4, 2])[0]))

    def names(self, rel, folders):
        at = os.path.join(self.plain, rel)
        return sorted(x for x in os.listdir(at) if stat.S_ISDIR(os.lstat(os.path.join(at, x)).st_mode) == folders)

    def folder(self, depth):
        """One that is there, at most so deep; "" is the top."""
        rel = ""
        for _ in range(self.r.randint(0, depth)):
            below = self.names(rel, True)
            if not below:
                break
            rel = os.path.join(rel, self.r.choice(below))
        return rel

    def file(self):
        """Mostly something that is there and no folder."""
        rel = self.folder(2)
        names = self.names(rel, False)
        return os.path.join(rel, self.r.choice(names)) if names and self.r.random() < .9 else self.path()

    def path(self):
        """Mostly something that is there: most operations should succeed."""
        if self.r.random() < .15:
            return self.anywhere()
        rel = self.folder(2)
        names = self.names(rel, True) + self.names(rel, False)
        return os.path.join(rel, self.r.choice(names)) if names else self.anywhere()

    def fresh(self):
        """Mostly a name in a folder that is there."""
        if self.r.random() < .15:
            return self.anywhere()
        return os.path.join(self.folder(2), self.r.choices(NAMES, WEIGHTS)[0])

    def data(self):
        n = self.r.choice([0, 1, 10, 100, 4096, 5000, 70000])
        return self.r.randbytes(n)

    def off(self):
        r = self.r
        return r.choice([0, 0, r.randint(0, 100), r.randint(0, 9000), r.randint(0, 300000), 262144, 262143, 4194304 + r.randint(0, 999)])

    def flags(self):
        f = self.r.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        for extra, p in ((os.O_CREAT, .6), (os.O_EXCL, .15), (os.O_TRUNC, .2), (os.O_APPEND, .2), (os.O_DIRECTORY, .03),
                         (os.O_NOFOLLOW, .1)):
            if self.r.random() < p:
                f |= extra
        if f & os.O_EXCL and not f & os.O_CREAT:
            f &= ~os.O_EXCL
        return f | os.O_NONBLOCK

    def mode(self):
        return self.r.choice([0o644, 0o600, 0o755, 0o777, 0o444, 0o4755, 0o000])

    def next(self):
        r = self.r
        kinds = [("open", 14), ("mkdir", 5), ("rmdir", 3), ("unlink", 7), ("rename", 8), ("link", 4), ("symlink", 3), ("readlink", 2),
                 ("chmod", 3), ("utime", 3), ("stat", 8), ("list", 4), ("truncate", 3), ("setxattr", 2), ("getxattr", 1.5),
                 ("listxattr", 1), ("removexattr", 1), ("mkfifo", 0.5), ("contents", 4), ("tmpfile", 0.7)]
        if self.slots:
            kinds += [("close", 10), ("read", 6), ("write", 8), ("pwrite", 7), ("seek", 3), ("ftruncate", 3), ("fstat", 3), ("fsync", 1),
                      ("fchmod", 1), ("fallocate", 2), ("map", 2), ("copy", 1), ("linkfd", 0.7)]
        kind = r.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
        slot = r.choice(sorted(self.slots)) if self.slots else None
        if len(self.slots) > 12:
            kind = "close"
        p, fresh, file = self.path, self.fresh, self.file
        if kind in ("open", "tmpfile"):
            free = next(i for i in range(100) if i not in self.slots)
            if kind == "tmpfile":
                return kind, free, self.folder(3) or p()
            flags = self.flags()
            return kind, free, fresh() if flags & os.O_CREAT and r.random() < .5 else file(), flags, self.mode()
        return {
            "mkdir": lambda: (kind, fresh(), r.choice([0o755, 0o700, 0o777])),
            "rename": lambda: (kind, p(), r.choice([fresh, fresh, p])(), r.choice([0, 0, 0, 0, NOREPLACE, EXCHANGE])),
            "link": lambda: (kind, file(), fresh()),
            "symlink": lambda: (kind, r.choice([p(), p(), "."]), fresh()),
            "mkfifo": lambda: (kind, fresh()),
            "rmdir": lambda: (kind, self.folder(3) or p()),
            "list": lambda: (kind, self.folder(3) or p()),
            "unlink": lambda: (kind, file()),
            "contents": lambda: (kind, file()),
            "chmod": lambda: (kind, p(), self.mode()),
            "utime": lambda: (kind, p(), r.randint(-10**9, 2 * 10**18)),
            "stat": lambda: (kind, p(), r.random() < .5),
            "truncate": lambda: (kind, file(), self.off()),
            "setxattr": lambda: (kind, p(), r.choice(XATTRS + ["system.no", "user."]) if r.random() < .95 else "nonsense", r.randbytes(r.choice([0, 5, 200])), r.choice([0, 0, 1, 2])),
            "getxattr": lambda: (kind, p(), r.choice(XATTRS)),
            "removexattr": lambda: (kind, p(), r.choice(XATTRS)),
            "close": lambda: (kind, slot),
            "read": lambda: (kind, slot, r.choice([0, 1, 100, 5000, 300000]), self.off()),
            "write": lambda: (kind, slot, self.data()),
            "pwrite": lambda: (kind, slot, self.data(), self.off()),
            "seek": lambda: (kind, slot, self.off(), r.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])),
            "ftruncate": lambda: (kind, slot, self.off()),
            "fstat": lambda: (kind, slot),
            "fsync": lambda: (kind, slot),
            "fchmod": lambda: (kind, slot, self.mode()),
            "fallocate": lambda: (kind, slot, r.choice(FALLOCATE), self.off(), r.choice([0, 1, 5000, 300000])),
            "map": lambda: (kind, slot, r.randint(0, 6000), r.randbytes(r.choice([1, 100, 5000]))),
            "copy": lambda: (kind, slot, r.choice(sorted(self.slots)), r.choice([10, 5000])),
            "linkfd": lambda: (kind, slot, fresh()),
        }.get(kind, lambda: (kind, p()))()


def can_allocate(folder):
    """The modes of fallocate that the plain folder's file system has: the view has all of them."""
    fine = [PUNCH]  # refused everywhere
    with tempfile.TemporaryFile(dir=folder) as f:
        f.write(bytes(8192))
        f.flush()
        for mode in (0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP):
            if libc.fallocate(f.fileno(), mode, ctypes.c_long(0), ctypes.c_long(4096)) == 0:
                fine.append(mode)
    return fine


def outcome(side, op):
    try:
        return "ok", getattr(side, op[0])(*op[1:])
    except OSError as e:
        return "err", errno.errorcode.get(e.errno, e.errno)
    except ValueError as e:  # mmap of an empty file
        return "err", str(e)


def brief(op):
    return tuple(f"<{len(x)} bytes>" if isinstance(x, bytes) and len(x) > 20 else x for x in op)


def tree(top, with_times=False):
    out = {}
    groups = {}
    for folder, dirs, files in os.walk(top):
        for name in dirs + files + ([""] if folder == top else []):
            path = os.path.join(folder, name) if name else top
            rel = os.path.relpath(path, top)
            st = os.lstat(path)
            item = list(Side.shown(st))
            if name == "":
                item[0] = None  # the roots are made by different hands
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    item.append(hashlib.sha1(f.read()).hexdigest())
                groups.setdefault(st.st_ino, []).append(rel)
            if stat.S_ISLNK(st.st_mode):
                item.append(os.readlink(path))
            if not stat.S_ISLNK(st.st_mode):
                item.append(sorted((x, os.getxattr(path, x)) for x in os.listxattr(path) if x.startswith("user.")))
            if with_times and not stat.S_ISDIR(st.st_mode):
                item.append(st.st_mtime_ns)
            out[rel] = tuple(map(str, item))
    for names in groups.values():  # which names are one file
        for rel in names:
            out[rel] += (",".join(sorted(names)),)
    return out


def differences(a, b, what):
    bad = [f"{what}: {k}: {a.get(k)} != {b.get(k)}" for k in sorted(set(a) | set(b)) if a.get(k) != b.get(k)]
    for line in bad[:10]:
        print(line)
    return len(bad)


def on_a_view(work, name, prepare=None, env=None):
    """What a test program of a project's view does: makes a place (`prepare` fills it), and runs itself again below proj-try,
    where it does its work. The exit status; 77 where nothing can be mounted."""
    ap = argparse.ArgumentParser()
    ap.add_argument("--try", dest="program")
    args = ap.parse_args()
    if "VIEW" in os.environ:
        return work()
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("mounting needs root and /dev/fuse")
        return 77
    top = tempfile.mkdtemp(prefix=f"virga-{name}-", dir="/var/tmp")
    try:
        if prepare:
            prepare(top)
        return subprocess.run([args.program, top, sys.executable] + sys.argv, env={**os.environ, **(env or {})}).returncode
    finally:
        shutil.rmtree(top, ignore_errors=True)


class Control:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.connect(path)
        self.f = self.s.makefile("rw")

    def __call__(self, word):
        self.f.write(word + "\n")
        self.f.flush()
        return self.f.readline().strip()


def compare(args, ctl, view, client, plain, when):
    bad = 0
    shown = tree(view, with_times=True)
    said = ctl("barrier")
    if not said.startswith("0"):
        print("barrier:", said)
        bad += 1
    bad += differences({k: v for k, v in tree(view).items()}, tree(plain), f"{when}: view, plain")
    bad += differences(tree(client), tree(plain), f"{when}: client, plain")
    bad += differences(shown, tree(client, with_times=True), f"{when}: view, client, with times")
    return bad


def work(args):
    view, client, ctl = os.environ["VIEW"], os.environ["CLIENT"], Control(os.environ["CTL"])
    plain = os.environ["PLAIN"]
    FALLOCATE[:] = can_allocate(os.path.dirname(plain))
    a, b, walk = Side(view), Side(plain), Walk(args.seed, plain)
    trouble = random.Random(args.seed + 1)
    counts, last, made = {}, None, {}
    os.umask(0o022)
    for i in range(args.ops):
        op = walk.next()
        ra, rb = outcome(a, op), outcome(b, op)
        counts[op[0], rb[0]] = counts.get((op[0], rb[0]), 0) + 1
        if ra != rb:
            print(f"operation {i} of seed {args.seed}: {brief(op)}: the view says {ra}, the plain folder {rb}")
            differences(tree(view), tree(plain), "view, plain")
            print("barrier:", ctl("barrier"), "last trouble:", last)
            differences(tree(client), tree(plain), "client, plain")
            differences(tree(view), tree(client), "later: view, client")
            return 1
        if i >= args.look:
            what = f"operation {i} of seed {args.seed}: {brief(op)}: {ra}"
            if differences(tree(view), tree(plain), what + ": view, plain"):
                return 1
            print(i, brief(op), ra) if os.environ.get("TELL") else None
            said = ctl("barrier")
            if not said.startswith("0") or differences(tree(client), tree(plain), what + ": client, plain"):
                print("barrier:", said, ctl("notes"))
                return 1
        if rb[0] == "ok" and op[0] in ("open", "tmpfile"):
            walk.slots.add(op[1])
            made[op[1]] = (i, *op[2:])
        if op[0] == "close":
            walk.slots.discard(op[1])
        if i % args.open == 0:
            for slot in sorted(walk.slots):
                shown = [outcome(side, ("fstat", slot)) for side in (a, b)]
                if shown[0] != shown[1]:
                    print(f"after operation {i} of seed {args.seed}: {brief(op)}: {ra}: open file {slot} ({made.get(slot)}): "
                          f"the view says {shown[0]}, the plain folder {shown[1]}; last trouble: {last}")
                    return 1
        if args.cuts and trouble.random() < 0.003 * args.trouble:
            last = f"{i} cut"
            ctl("cut")
        if args.restarts and trouble.random() < 0.0005 * args.trouble:
            last = f"{i} restart"
            ctl("restart")
        if trouble.random() < 0.0005 * args.trouble:
            last = f"{i} run"
            ctl("run")
        if (i + 1) % args.every == 0 and compare(args, ctl, view, client, plain, f"after {i + 1}"):
            print(f"seed {args.seed}")
            return 1
    for slot in sorted(walk.slots):
        a.close(slot)
        b.close(slot)
    if compare(args, ctl, view, client, plain, "at the end"):
        print(f"seed {args.seed}")
        return 1
    ctl("settle")
    ctl("run")
    if differences(tree(view, True), tree(client, True), "settled: view, client"):
        print(f"seed {args.seed}")
        return 1
    inodes = [(os.lstat(os.path.join(f, n)).st_ino, os.lstat(os.path.join(client, os.path.relpath(os.path.join(f, n), view))).st_ino)
              for f, d, files in os.walk(view) for n in d + files]
    if any(x != y for x, y in inodes):
        print(f"seed {args.seed}: {sum(x != y for x, y in inodes)} inode numbers are not the client's")
        return 1
    kinds = len({k for k, r in counts if r == "ok"})
    failed = sum(n for (k, r), n in counts.items() if r == "err")
    print(f"{args.ops} operations of {kinds} kinds, seed {args.seed}: {args.ops - failed} succeeded, {failed} failed alike on both sides, "
          f"{len(inodes)} things in the end")
    if failed > args.ops / 2:
        print("most of them failed: nothing much was tested")
        return 1
    if os.environ.get("TELL"):
        print(sorted(counts.items()))
    notes = ctl("notes")
    if notes:
        print("notes:", notes)
        return 1
    return 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--ops", type=int, default=20000)
    ap.add_argument("--every", type=int, default=5000)
    ap.add_argument("--cuts", action="store_true")
    ap.add_argument("--restarts", action="store_true")
    ap.add_argument("--trouble", type=float, default=1)
    ap.add_argument("--open", type=int, default=20, help="compare open files every so many operations")
    ap.add_argument("--look", type=int, default=10**9, help="compare the whole trees after every operation from this one on")
    ap.add_argument("--try", dest="program")
    args = ap.parse_args()
    if "VIEW" in os.environ:
        return work(args)
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("mounting needs root and /dev/fuse")
        return 77
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/var/tmp"], capture_output=True, text=True).stdout.strip()
    if kind not in ("ext2/ext3", "xfs", "btrfs"):
        print(f"/var/tmp is on {kind}, which answers some operations in ways of its own")
        return 77
    top = tempfile.mkdtemp(prefix="virga-diff-", dir="/var/tmp")
    try:
        client, plain = os.path.join(top, "client/p"), os.path.join(top, "other/plain")
        os.makedirs(client)
        os.mkdir(os.path.join(top, "other"))  # links lead out of the folders, and must not meet there
        r = random.Random(args.seed)
        for d in ("a", "b", "a/b", "c"):
            os.mkdir(os.path.join(client, d))
        for f in ("d", "a/a", "a/b/c", "c/d", "b/e"):
            with open(os.path.join(client, f), "wb") as out:
                out.write(r.randbytes(r.choice([0, 100, 5000, 600000])))
        os.link(os.path.join(client, "d"), os.path.join(client, "b/d"))
        os.setxattr(os.path.join(client, "d"), "user.one", b"before")
        subprocess.run(["cp", "-a", client, plain], check=True)
        env = dict(os.environ, PLAIN=plain)
        return subprocess.run([args.program, top, sys.executable] + sys.argv, env=env).returncode
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
