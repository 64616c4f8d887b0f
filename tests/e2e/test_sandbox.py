"""Ways out of a sandbox, and sideways into a neighbour: each is tried as root inside and must be refused.

An attempt is a piece of Python that ends in one of three ways: it got what it wanted (42), the system refused
it (7), or it is broken (anything else, which fails the test). The same piece is run outside as a control and
must get what it wants there, so that a refusal means something; where that is impossible the table says why.
"""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from virga import BIN

TRY = Path(os.environ.get("VIRGA_SANDBOX_TRY", BIN.parent / "tests/unit/sandbox/sandbox-try"))
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes need root"),
    pytest.mark.skipif(not TRY.exists(), reason=f"{TRY} is not built: run make first"),
]

GOT_IT, REFUSED = 42, 7

PRELUDE = r"""
import ctypes, ctypes.util, errno, fcntl, glob, os, resource, signal, socket, struct, subprocess, sys, termios, time
libc = ctypes.CDLL(None, use_errno=True)
T = int(os.environ.get("T", 1))  # a process to attack: pid 1 inside, one of ours outside
NR = dict(ptrace=101, syslog=103, setns=308, unshare=272, clone=56, clone3=435, mount=165, umount2=166, pivot_root=155,
          fsopen=430, open_tree=428, move_mount=429, mount_setattr=442, bpf=321, perf_event_open=298, keyctl=250,
          add_key=248, request_key=249, userfaultfd=323, io_uring_setup=425, fanotify_init=300, kcmp=312, acct=163,
          name_to_handle_at=303, open_by_handle_at=304, clock_settime=227, adjtimex=159, swapoff=168, quotactl=179,
          reboot=169, init_module=175, kexec_load=246, iopl=172, sethostname=170, setdomainname=171, vhangup=153,
          process_vm_readv=310, shmget=29, mq_open=240)
def call(name, *args):
    r = libc.syscall(ctypes.c_long(NR[name]), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r == -1:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), name)
    return r
def buf(n, data=b""):
    return ctypes.create_string_buffer(data, n)
def passed_the_gate(*fine):
    # The kernel looked at the arguments: the caller had the right. Only EPERM is a refusal.
    class Gate:
        def __enter__(self): return self
        def __exit__(self, kind, e, tb): return isinstance(e, OSError) and e.errno in fine
    return Gate()
def attempt():
"""
POSTLUDE = r"""
try:
    got = attempt()
except OSError as e:
    print("refused:", e, file=sys.stderr)
    os._exit(7)
os._exit(7 if got is False else 42)
"""


def sandbox(*args, options=(), timeout=60, **kw):
    return subprocess.run([TRY, *options, "--", *args], capture_output=True, timeout=timeout, **kw)


def piece(code):
    return PRELUDE + "".join(f"    {line}\n" for line in code.strip("\n").splitlines()) + POSTLUDE


def inside(code, options=("--net", "none"), env=None):
    options = list(options)
    for k, v in (env or {}).items():
        options += ["--env", f"{k}={v}"]
    return sandbox("/usr/bin/python3", "-c", piece(code), options=options)


def outside(code, prefix=(), env=None):
    return subprocess.run([*prefix, "/usr/bin/python3", "-c", piece(code)], capture_output=True, timeout=60,
                          env={**os.environ, **(env or {})})


OWN_MOUNTS = ("unshare", "-m")
OWN_NAME = ("unshare", "-u")
OWN_NET = ("unshare", "-n")

# name: (code, control). A control is a prefix for the run outside, or a reason why there is none.
ATTEMPTS = {
    # devices
    "make_a_disk_node": ("""
        os.mknod("/tmp/vg-disk-%d" % os.getpid(), 0o60600, os.makedev(254, 0)); os.unlink("/tmp/vg-disk-%d" % os.getpid())
        """, ()),
    "make_a_memory_node": ("""
        os.mknod("/tmp/vg-mem-%d" % os.getpid(), 0o20600, os.makedev(1, 1)); os.unlink("/tmp/vg-mem-%d" % os.getpid())
        """, ()),
    "open_the_kernel_log": ('os.open("/dev/kmsg", os.O_RDONLY)', ()),
    "open_any_disk": ("""
        for d in os.listdir("/sys/block"):
            try: return os.open("/dev/" + d, os.O_RDONLY) >= 0
            except OSError as e: last = e
        raise last
        """, ()),
    "open_fuse": ('os.open("/dev/fuse", os.O_RDWR)', ()),
    "change_dev": ('os.symlink("x", "/dev/vg-x"); os.unlink("/dev/vg-x")', ()),
    "ports_of_the_machine": ('call("iopl", 3)', "this kernel may have no port access"),
    # mounts
    "mount_a_tmpfs": ('call("mount", b"t", b"/mnt", b"tmpfs", 0, 0)', OWN_MOUNTS),
    "mount_a_proc": ('call("mount", b"p", b"/mnt", b"proc", 0, 0)', OWN_MOUNTS),
    "bind_mount": ('call("mount", b"/etc", b"/mnt", 0, 4096, 0)', OWN_MOUNTS),
    "remount_with_devices": ('call("mount", 0, b"/", 0, 32 | 4096, 0)', OWN_MOUNTS),
    "uncover_proc": ('call("umount2", b"/proc", 2)', OWN_MOUNTS),
    "new_mount_api": ('call("fsopen", b"tmpfs", 0)', OWN_MOUNTS),
    "clone_a_tree": ('call("open_tree", -100, b"/", 1)', OWN_MOUNTS),
    "change_mount_attributes": ("""
        call("mount_setattr", -100, b"/", 0, buf(32, struct.pack("QQQQ", 0, 2, 0, 0)), 32)
        """, OWN_MOUNTS),
    "move_a_mount": ("""
        with passed_the_gate(errno.EINVAL, errno.ENOENT): call("move_mount", -100, b"/proc", -100, b"/nosuch", 0)
        """, OWN_MOUNTS),
    "pivot_root": ('with passed_the_gate(errno.EINVAL, errno.EBUSY): call("pivot_root", b"/", b"/")', OWN_MOUNTS),
    # namespaces
    "own_user_namespace": ('call("unshare", 0x10000000)', ()),
    "own_mount_namespace": ('call("unshare", 0x20000)', ()),
    "own_network": ('call("unshare", 0x40000000)', ()),
    "own_cgroup_namespace": ('call("unshare", 0x2000000)', ()),
    "clone_with_user_namespace": ("""
        pid = call("clone", 0x10000000 | 17, 0, 0, 0, 0)
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        """, ()),
    "clone_with_pid_namespace": ("""
        pid = call("clone", 0x20000000 | 17, 0, 0, 0, 0)
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        """, ()),
    "clone3_with_user_namespace": ("""
        pid = call("clone3", buf(64, struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)), 64)
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        """, ()),
    "join_the_namespaces_of_pid_1": ('call("setns", os.open(f"/proc/{T}/ns/uts", os.O_RDONLY), 0)', ()),
    "join_by_pidfd": ('call("setns", os.pidfd_open(T), 0x4000000)', OWN_NAME),
    # processes
    "trace_pid_1": ('call("ptrace", 16, T, 0, 0)', ()),
    "read_the_memory_of_pid_1": ('open(f"/proc/{T}/mem", "rb")', ()),
    "read_the_memory_of_pid_1_by_call": ("""
        out = buf(8); a = [int(x, 16) for x in open(f"/proc/{T}/maps").readline().split()[0].split("-")]
        l = buf(16, struct.pack("QQ", ctypes.addressof(out), 8)); r = buf(16, struct.pack("QQ", a[0], 8))
        call("process_vm_readv", T, l, 1, r, 1, 0)
        """, ()),
    "read_the_environment_of_pid_1": ('open(f"/proc/{T}/environ").read()', ()),
    "look_through_the_root_of_pid_1": ('os.listdir(f"/proc/{T}/root/")', ()),
    "look_at_the_files_of_pid_1": ('os.listdir(f"/proc/{T}/fd")', ()),
    "kill_pid_1": ("""
        for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV): os.kill(1, s)
        return False  # still here: the namespace would have died with it
        """, "killing this machine's pid 1 is no experiment"),
    "be_more_important_than_others": ("os.setpriority(os.PRIO_PROCESS, 0, -20)", ()),
    "be_a_real_time_process": ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", ()),
    "compare_kernel_objects": ('call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)', ()),
    # the kernel's knobs
    "set_the_core_pattern": ('open("/proc/sys/kernel/core_pattern", "r+")', ()),
    "drop_caches": ('os.open("/proc/sys/vm/drop_caches", os.O_WRONLY)', ()),
    "write_any_sysctl": ("""
        last = None
        for f in glob.glob("/proc/sys/**", recursive=True):
            if os.path.isfile(f):
                try: return os.open(f, os.O_WRONLY) >= 0
                except OSError as e: last = e
        raise last
        """, ()),
    "write_anything_in_sys": ("""
        last = OSError(1, "nothing there")
        for d, _, files in os.walk("/sys/kernel"):
            for f in files:
                try:
                    if os.stat(d + "/" + f).st_mode & 0o222: return os.open(d + "/" + f, os.O_WRONLY) >= 0
                except OSError as e: last = e
        raise last
        """, ()),
    "press_sysrq": ('os.open("/proc/sysrq-trigger", os.O_WRONLY)', "missing"),
    "read_kernel_memory": ('os.open("/proc/kcore", os.O_RDONLY)', "missing"),
    "read_kernel_symbols": ('return len(open("/proc/kallsyms").read(100)) > 0', ()),
    "read_timers": ('return len(open("/proc/timer_list").read(100)) > 0', ()),
    "read_keys_of_others": ('return len(open("/proc/key-users").read(100)) > 0', ()),
    "read_the_kernel_log_by_call": ('call("syslog", 3, buf(100), 100)', ()),
    "change_the_host_name": ('call("sethostname", b"x", 1)', OWN_NAME),
    "change_the_host_name_by_file": ('open("/proc/sys/kernel/hostname", "w").write("x")', OWN_NAME),
    "change_the_domain_name": ('call("setdomainname", b"x", 1)', OWN_NAME),
    "set_the_clock": ('call("clock_settime", 0, buf(16, struct.pack("qq", int(time.time()), 0)))',
                      "it would set this machine's clock"),
    "bend_the_clock": ('call("adjtimex", buf(256, struct.pack("iq", 2, 1 << 20)))', "it would bend this machine's clock"),
    "swap_off": ('with passed_the_gate(errno.EINVAL): call("swapoff", b"/etc/passwd")', ()),
    "account": ('with passed_the_gate(errno.EACCES, errno.EISDIR, errno.ENOSYS): call("acct", b"/proc")', ()),
    "change_quotas": ('with passed_the_gate(errno.ESRCH, errno.ENOTBLK, errno.EINVAL, errno.ENOSYS): '
                      'call("quotactl", 0x80000301 - (1 << 32), b"/etc/passwd", 0, 0)', ()),
    "reboot": ('with passed_the_gate(errno.EINVAL): call("reboot", 1, 2, 3, 0)', ()),
    "load_a_module": ('with passed_the_gate(errno.ENOEXEC, errno.EFAULT): call("init_module", buf(8), 8, b"")',
                      "this kernel may have no modules"),
    "load_a_kernel": ('with passed_the_gate(errno.EINVAL): call("kexec_load", 0, 99, 0, 0)',
                      "this kernel may have no kexec"),
    # kernel machinery with a history
    "load_a_bpf_map": ('call("bpf", 0, buf(72, struct.pack("IIIII", 2, 4, 4, 1, 0)), 72)', ()),
    "open_performance_counters": ("""
        call("perf_event_open", buf(112, struct.pack("IIQ", 1, 112, 0)), 0, -1, -1, 0)
        """, ()),
    "handle_page_faults": ('call("userfaultfd", 0)', ()),
    "io_uring": ('call("io_uring_setup", 4, buf(120))', ()),
    "watch_the_file_system": ('call("fanotify_init", 0, 0)', ()),
    "find_files_by_handle": ('call("name_to_handle_at", -100, b"/etc", buf(136, struct.pack("Ii", 128, 0)), buf(4), 0)', ()),
    "open_files_by_handle": ("""
        h = struct.pack("Ii", 8, 1) + struct.pack("II", 2, 0)   # inode 2: the root of many file systems
        with passed_the_gate(errno.ESTALE, errno.EINVAL): call("open_by_handle_at", os.open("/", os.O_RDONLY), buf(136, h), 0)
        """, ()),
    "add_a_key": ('call("add_key", b"user", b"vg", b"x", 1, -2)', ()),
    "join_a_keyring": ('call("keyctl", 1, 0)', ()),
    "search_keys": ('with passed_the_gate(errno.ENOKEY): call("request_key", b"user", b"vg-nosuch", 0, -2)', ()),
    "type_into_the_terminal": ("""
        pid = os.fork()  # a group's leader could make no session
        if pid: os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        m, s = os.openpty(); os.setsid(); fcntl.ioctl(s, termios.TIOCSCTTY, 0)
        fcntl.ioctl(s, termios.TIOCSTI, b"x")
        """, ()),
    "system_calls_of_another_architecture": (r"""
        import mmap
        m = mmap.mmap(-1, 4096, prot=7); m.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov $20,%eax; int $0x80; ret
        f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
        if f() < 0: raise OSError(errno.ENOSYS, "refused")
        """, "this kernel may have no 32-bit calls"),
    # network
    "raw_packets": ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)", ()),
    "take_an_interface_down": ("""
        s = socket.socket(); fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0))
        """, OWN_NET),
}


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_refuses_to(name, sleeper):
    code, control = ATTEMPTS[name]
    code = "\n".join(line[8:] if line.startswith("        ") else line for line in code.strip("\n").splitlines())
    done = inside(code)
    killed = done.returncode == 128 + 31  # SIGSYS
    assert done.returncode == REFUSED or killed, (done.returncode, done.stderr.decode())
    if isinstance(control, tuple):
        done = outside(code, control, {"T": str(sleeper.pid)})
        if done.returncode == REFUSED:
            pytest.skip("this machine refuses it outside, too")
        assert done.returncode == GOT_IT, f"control: {done.returncode} {done.stderr.decode()}"


# ---- things of the host and of neighbours ---------------------------------------------------------------------


def both(code, env, options=("--net", "none")):
    """The attempt is refused inside and works outside."""
    done = inside(code, options, env)
    assert done.returncode == REFUSED, (done.returncode, done.stderr.decode())
    done = outside(code, env=env)
    assert done.returncode == GOT_IT, (done.returncode, done.stderr.decode())


def test_host_processes_cannot_be_signalled(sleeper):
    both('os.kill(int(os.environ["P"]), 0)', {"P": str(sleeper.pid)})


def test_host_processes_cannot_be_seen(sleeper):
    both("""
def command(path):
    try: return open(path, "rb").read()
    except OSError: return b""  # it ended meanwhile
return any(b"sleep\\x001000" in command(f) for f in glob.glob("/proc/[0-9]*/cmdline"))
""", {})


@pytest.mark.parametrize("where", ["/home", "/root", "/tmp", "/var/tmp", "/run", "/dev/shm"])
def test_files_in_private_places_of_the_host_cannot_be_seen(where):
    path = Path(where) / f"vg-{uuid.uuid4().hex}"
    path.write_text("secret")
    path.chmod(0o666)
    try:
        both('open(os.environ["F"]).read()', {"F": str(path)})
    finally:
        path.unlink()


def test_sockets_in_run_cannot_be_reached():
    path = f"/run/vg-{uuid.uuid4().hex}.sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        os.chmod(path, 0o666)
        s.listen()
        try:
            both('socket.socket(socket.AF_UNIX).connect(os.environ["F"])', {"F": path})
        finally:
            os.unlink(path)


def test_abstract_sockets_of_the_host_cannot_be_reached():
    name = f"vg-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("\0" + name)
        s.listen()
        both('socket.socket(socket.AF_UNIX).connect("\\0" + os.environ["F"])', {"F": name})


def test_shared_memory_of_the_host_cannot_be_attached():
    key = 0x76690000 | os.getpid() & 0xFFFF
    make = f'call("shmget", {key}, 4096, 0o1666)'
    assert outside(make).returncode == GOT_IT
    try:
        both(f'call("shmget", {key}, 0, 0)', {})
    finally:
        subprocess.run(["ipcrm", "-M", hex(key)], check=True)


def test_message_queues_of_the_host_cannot_be_opened():
    name = f"vg-{uuid.uuid4().hex}"
    assert outside(f'call("mq_open", b"{name}", 0o102, 0o666, 0)').returncode == GOT_IT
    try:
        both(f'call("mq_open", b"{name}", 2, 0, 0)', {})
    finally:
        libc = __import__("ctypes").CDLL(None)
        libc.syscall(241, name.encode())


def test_writes_to_the_system_stay_inside():
    name = f"vg-{uuid.uuid4().hex}"
    for place in ("/usr", "/etc", "/opt", "/var/lib", "/"):
        path = Path(place) / name
        done = sandbox("/bin/sh", "-c", f"echo x > {path} && cat {path}")
        assert done.stdout == b"x\n", done.stderr
        assert not path.exists()
    assert sandbox("/bin/sh", "-c", f"echo {name}::0:0::/:/bin/sh >> /etc/passwd; grep -q {name} /etc/passwd").returncode == 0
    assert name not in Path("/etc/passwd").read_text()


def test_the_clouds_own_folder_is_hidden_even_below_the_working_directory(tmp_path):
    home = tmp_path / "cloud"
    home.mkdir()
    (home / "key").write_text("secret")
    (tmp_path / "mine").write_text("mine")
    opts = ["--virga-home", str(home), "--cwd", str(tmp_path)]
    done = sandbox("/bin/sh", "-c", "cat mine; cat cloud/key; ls -A cloud; touch cloud/x", options=opts)
    assert b"mine" in done.stdout and b"secret" not in done.stdout and done.returncode != 0
    (home / "node").mkdir(exist_ok=True)
    done = sandbox("/bin/cat", str(home / "key"), options=["--virga-home", str(home), "--cwd", str(home)])
    assert b"secret" not in done.stdout and done.returncode != 0
    assert sandbox("/bin/cat", "key", options=["--cwd", str(home)]).stdout == b"secret", "control: not its own folder"


def test_a_chroot_inside_is_no_way_out(tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("x")
    code = """
os.makedirs("/tmp/vg-jail/a", exist_ok=True)
os.chroot("/tmp/vg-jail"); os.mkdir("/b") if not os.path.exists("/b") else None
os.chroot("/b")
for _ in range(64): os.chdir("..")
os.chroot(".")
return os.path.exists(os.environ["F"])
"""
    both(code, {"F": str(marker)})
    shutil.rmtree("/tmp/vg-jail")


def test_device_nodes_in_bound_folders_do_not_open(tmp_path):
    node = tmp_path / "zero"
    os.mknod(node, 0o20666, os.makedev(1, 5))
    done = sandbox("/bin/sh", "-c", f"head -c1 {node}", options=["--cwd", str(tmp_path)])
    assert done.returncode != 0 and b"ermission denied" in done.stderr
    assert subprocess.run(["head", "-c1", node], capture_output=True).returncode == 0, "control"


def test_setuid_programs_give_nothing(tmp_path):
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    tmp_path.chmod(0o777)
    prog = tmp_path / "id"
    shutil.copy("/usr/bin/id", prog)
    os.chown(prog, 0, 0)
    prog.chmod(0o4755)
    opts = ["--uid", "1234", "--gid", "1234", "--cwd", str(tmp_path)]
    assert sandbox(str(prog), "-u", options=opts).stdout == b"1234\n"
    done = subprocess.run([prog, "-u"], user=1234, group=1234, capture_output=True)
    assert done.stdout == b"0\n", "control: set-user-id works here outside"
    done = sandbox("/bin/sh", "-c", f"cp /usr/bin/id i; chmod 4755 i; ./i -u", options=opts)
    assert done.stdout == b"1234\n"


def test_a_remote_root_is_nobody_on_shared_folders(tmp_path):
    tmp_path.parent.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "roots").write_text("secret")
    (tmp_path / "roots").chmod(0o600)
    opts = ["--remote", "--cwd", str(tmp_path)]
    done = sandbox("/bin/sh", "-c", "id -u; cat roots; cp /bin/sh s; chmod 4755 s; chown 0 s; true", options=opts)
    assert b"secret" not in done.stdout and done.stdout.startswith(b"0\n")
    assert (tmp_path / "s").stat().st_uid >= 0x20000000, "a set-user-id root program was left on the host"
    done = sandbox("/bin/cat", "roots", options=["--cwd", str(tmp_path)])
    assert done.stdout == b"secret", "control: this machine's own root may"


def test_tenants_cannot_read_each_others_files(tmp_path):
    tmp_path.parent.chmod(0o755)
    tmp_path.chmod(0o777)
    a = ["--remote", "--slot", "11", "--cwd", str(tmp_path)]
    b = ["--remote", "--slot", "12", "--cwd", str(tmp_path)]
    assert sandbox("/bin/sh", "-c", "umask 077; echo mine > a", options=a).returncode == 0
    assert sandbox("/bin/cat", "a", options=a).stdout == b"mine\n", "control: the owner can"
    for cmd in ("cat a", "echo x > a", "chmod 777 a", "chown 0 a", "ln a b && cat b"):
        done = sandbox("/bin/sh", "-c", cmd, options=b)
        assert done.returncode != 0 and b"mine" not in done.stdout, cmd


def test_a_remote_root_is_no_root_over_files_of_this_machines_people():
    folder = Path(f"/opt/vg-{uuid.uuid4().hex}")
    folder.mkdir()
    try:
        (folder / "private").write_text("secret")
        (folder / "public").write_text("hello")
        for f in ("private", "public"):
            os.chown(folder / f, 1234, 1234)
        (folder / "private").chmod(0o600)
        done = sandbox("/bin/sh", "-c", f"cat {folder}/public {folder}/private", options=["--remote"])
        assert done.stdout == b"hello" and b"ermission denied" in done.stderr
        done = sandbox("/bin/cat", folder / "private")
        assert done.stdout == b"secret", "control: this machine's own root may"
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/gshadow"])
def test_secrets_of_the_node_are_hidden_from_remote_roots(path):
    if not os.path.exists(path) or not os.path.getsize(path):
        pytest.skip(f"this machine has no {path}")
    assert sandbox("/bin/cat", path, options=["--remote"]).stdout == b""
    assert sandbox("/bin/cat", path).stdout == Path(path).read_bytes(), "control: its own root sees it"


def test_only_the_named_device_opens():
    for dev in ("/dev/hwrng", "/dev/kvm", "/dev/fuse", "/dev/loop-control"):
        if os.path.exists(dev):
            break
    else:
        pytest.skip("this machine has no device to try with")
    code = f'os.open("{dev}", os.O_RDWR if "{dev}" != "/dev/hwrng" else os.O_RDONLY)'
    assert inside(code).returncode == REFUSED
    done = inside(code, options=["--device", dev])
    assert done.returncode == GOT_IT, done.stderr
    other = "/dev/loop-control" if dev != "/dev/loop-control" else "/dev/fuse"
    assert inside(f'os.open("{other}", os.O_RDWR)', options=["--device", dev]).returncode == REFUSED
    done = sandbox("/bin/sh", "-c", "echo x > /dev/null; head -c1 /dev/zero; ls -d /dev/pts/ptmx /dev/shm",
                   options=["--device", dev])
    assert done.returncode == 0


# ---- limits -----------------------------------------------------------------------------------------------------


def test_a_fork_bomb_is_bounded():
    code = """
n = 0
try:
    while n < 5000:
        if os.fork() == 0: signal.pause()
        n += 1
except OSError as e:
    if e.errno != errno.EAGAIN: raise
print(n, flush=True)
return False
"""
    done = inside(code, options=["--pids", "50"])
    assert done.returncode == REFUSED and int(done.stdout) < 50


def test_a_memory_hog_is_killed_alone():
    hog = "import sys; x = bytearray(300 << 20); print(len(x))"
    done = sandbox("/bin/sh", "-c", f"python3 -c '{hog}'; echo $?", options=["--mem", "64M", "--usage"])
    assert done.stdout == b"137\n" and b"oom=1" in done.stderr, done
    done = sandbox("python3", "-c", hog, options=["--mem", "1G", "--usage"])
    assert done.returncode == 0 and b"oom=0" in done.stderr, "control: enough memory"


@pytest.mark.parametrize("where", ["/tmp", "/var/tmp", "/dev/shm", "/usr", "/run"])
def test_a_disk_filler_meets_the_end_of_its_disk(where):
    fill = f"dd if=/dev/zero of={where}/x bs=1M count=20"
    done = sandbox("/bin/sh", "-c", fill, options=["--disk", "8M"])
    assert done.returncode != 0 and b"No space left" in done.stderr
    assert sandbox("/bin/sh", "-c", fill, options=["--disk", "40M"]).returncode == 0, "control"


def test_one_limit_covers_all_scratch():
    fill = "for d in /tmp /var/tmp /dev/shm /usr; do dd if=/dev/zero of=$d/x bs=1M count=3 || exit 1; done"
    assert sandbox("/bin/sh", "-c", fill, options=["--disk", "8M"]).returncode != 0
    assert sandbox("/bin/sh", "-c", fill, options=["--disk", "20M"]).returncode == 0, "control"


def test_cpu_is_limited_to_what_was_bought():
    # A quarter of a CPU: a second of work takes about four, however loaded the machine is.
    burn = "import time; a = time.monotonic()\nwhile time.process_time() < 0.5: pass\nprint(time.monotonic() - a)"
    done = sandbox("python3", "-c", burn, options=["--cpu", "250"])
    assert float(done.stdout) > 1.0


# ---- nothing is left ----------------------------------------------------------------------------------------------


def traces():
    groups = subprocess.run("find /sys/fs/cgroup -maxdepth 6 -name 'virga-try*' 2>/dev/null", shell=True,
                            capture_output=True).stdout
    # Names of network namespaces are mounts, too, and others' business.
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/run/netns" not in line]
    return groups, mounts, sorted(p.name for p in Path("/tmp").glob("sandbox-try*"))


def test_nothing_is_left_behind():
    before, marker = traces(), f"200{os.getpid()}"
    done = sandbox("/bin/sh", "-c", f"sleep {marker} & (setsid sleep {marker} &) ; exit 3")
    assert done.returncode == 3
    assert traces() == before
    assert subprocess.run(["pgrep", "-f", f"sleep {marker}"], capture_output=True).stdout == b""


def test_every_failing_step_of_a_preparation_leaves_nothing():
    before = traces()
    done = subprocess.run([TRY, "--faults", "--home", "/root"], capture_output=True, timeout=120)
    assert done.returncode == 0, done
    assert int(done.stdout.split()[0]) >= 20
    assert traces() == before


def test_a_keepers_death_ends_everything():
    marker = f"100{os.getpid()}"
    child = subprocess.Popen([TRY, "--", "/bin/sh", "-c", f"echo up; sleep {marker}"], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    child.kill()
    child.wait()
    child.stdout.read()  # ends when the last process that holds it is gone: the proof itself
    left = subprocess.run(["pgrep", "-f", f"sleep {marker}"], capture_output=True).stdout
    assert left == b""
    subprocess.run("find /sys/fs/cgroup -depth -path '*virga-try%d*' -type d -exec rmdir {} + 2>/dev/null" % child.pid,
                   shell=True)
    shutil.rmtree(next(iter(Path("/tmp").glob("sandbox-try*")), "/nonexistent"), ignore_errors=True)


# ---- ordinary programs work ---------------------------------------------------------------------------------------


def works(script, options=(), timeout=120):
    done = sandbox("/bin/sh", "-ec", script, options=options, timeout=timeout)
    assert done.returncode == 0, (done.stdout.decode(), done.stderr.decode())
    return done.stdout.decode()


def test_python_works():
    out = works("python3 -c 'import ssl, sqlite3, subprocess, threading, multiprocessing as m;"
                "print(subprocess.check_output([\"echo\", \"hi\"]).decode(), m.Pool(2).map(abs, [-1, -2]))'")
    assert "hi" in out and "[1, 2]" in out


def test_gcc_works(tmp_path):
    (tmp_path / "a.c").write_text('#include <stdio.h>\n#include <pthread.h>\nvoid *f(void *x) { return x; }\n'
                                  'int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0);'
                                  ' puts("built"); }\n')
    assert works("gcc -O2 -o a a.c -pthread && ./a", ["--cwd", str(tmp_path)]) == "built\n"
    assert (tmp_path / "a").stat().st_uid == 0


def test_git_works(tmp_path):
    out = works("git init -q a; cd a; git config user.email a@b; git config user.name n; echo x > f; git add f;"
                "git commit -qm one; cd ..; git clone -q a b; cat b/f; git -C b log --oneline | wc -l",
                ["--cwd", str(tmp_path), "--env", "HOME=/tmp"])
    assert out == "x\n1\n"


DEB = """
mkdir -p p/DEBIAN p/usr/bin; printf '#!/bin/sh\\necho tiny\\n' > p/usr/bin/vg-tiny; chmod 755 p/usr/bin/vg-tiny
printf 'Package: vg-tiny\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\nDescription: x\\n' > p/DEBIAN/control
printf '#!/bin/sh\\nset -e\\nadduser --system --group vgtiny\\nchown vgtiny /usr/bin/vg-tiny\\n' > p/DEBIAN/postinst
chmod 755 p/DEBIAN/postinst; dpkg-deb -b p t.deb >/dev/null
"""


@pytest.mark.parametrize("who", [[], ["--remote"]])
def test_packages_install_in_the_overlay(who):
    out = works("cd /tmp;" + DEB + "dpkg -i t.deb >&2; vg-tiny; stat -c %U /usr/bin/vg-tiny; dpkg -r vg-tiny >&2", who)
    assert out == "tiny\nvgtiny\n"
    assert not Path("/usr/bin/vg-tiny").exists()


def test_apt_works():
    out = works("cd /tmp;" + DEB + "chmod 755 /tmp; apt-get install -y --no-install-recommends ./t.deb >&2; vg-tiny;"
                "apt-get purge -y vg-tiny >&2", timeout=300)
    assert out == "tiny\n"


def test_users_and_ids_behave():
    assert works("id -u; su -s /bin/sh nobody -c 'id -u'; touch /tmp/f; chown daemon:daemon /tmp/f; stat -c %U:%G /tmp/f") \
        == "0\n65534\ndaemon:daemon\n"
    assert works("id -u; id -g; id -G", ["--uid", "1234", "--gid", "1235", "--group", "27", "--group", "1235"]) \
        == "1234\n1235\n1235 27\n"


def test_folders_of_the_system_can_be_renamed():
    works("mv /usr/share/doc /usr/share/doc2; ls /usr/share/doc2 | head -1; rm -rf /usr/share/doc2/g*; mkdir /usr/share/doc")


def test_large_users_map(tmp_path):
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    os.chown(tmp_path, 70001, 70001)
    works("touch f; test $(id -u) = 70001; test $(stat -c %u f) = 70001",
          ["--uid", "70001", "--gid", "70001", "--cwd", str(tmp_path)])
    assert (tmp_path / "f").stat().st_uid == 70001


def test_home_is_bound_only_to_its_owner(tmp_path):
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    os.chown(tmp_path, 1234, 1234)
    (tmp_path / "f").write_text("x")
    assert works(f"cat {tmp_path}/f", ["--uid", "1234", "--gid", "1234", "--home", str(tmp_path)]) == "x"
    assert sandbox("cat", f"{tmp_path}/f", options=["--uid", "1235", "--home", str(tmp_path)]).returncode != 0


def test_read_only_binds_are(tmp_path):
    (tmp_path / "f").write_text("x")
    assert sandbox("/bin/sh", "-c", f"cat {tmp_path}/f; ! touch {tmp_path}/g",
                   options=["--bind-ro", str(tmp_path)]).returncode == 0
    assert sandbox("/bin/sh", "-c", f"touch {tmp_path}/g", options=["--bind", str(tmp_path)]).returncode == 0, "control"


def test_exec_failures_are_told_apart(tmp_path):
    assert sandbox("nosuch-command").returncode == 127
    assert sandbox("/etc/passwd").returncode == 126
    script = tmp_path / "plain"
    script.write_text("echo plain $1\n")
    script.chmod(0o755)
    assert sandbox("./plain", "x", options=["--cwd", str(tmp_path)]).stdout == b"plain x\n"
    done = sandbox("true", options=["--cwd", "/nosuch/dir"])
    assert done.returncode == 127 and b"cannot enter /nosuch/dir" in done.stderr


def test_arguments_up_to_the_kernels_limit():
    big = ["x" * 120000] * 12
    done = sandbox("/bin/sh", "-c", "echo $# ${#1}", "sh", *big)
    assert done.stdout == b"12 120000\n", done.stderr


def test_a_terminal_has_job_control():
    done = sandbox("/bin/sh", "-c", "test -t 0 && test -t 1; echo $?; tty; kill -TSTP $$; echo back",
                   options=["--tty"], stdin=subprocess.DEVNULL)
    assert b"/dev/pts/0" in done.stdout and b"back" in done.stdout
    assert b"stopped by signal 20" in done.stderr


# ---- a root that is not the node's ----------------------------------------------------------------------------------

PRIVATE = 0x20000000 + 7 * 65536  # what id 0 of a sandbox's user is outside


@pytest.fixture
def machine(tmp_path):
    """Another machine's files: this one's, with something that only it has, owned as a file daemon shows it."""
    root, layers = tmp_path / "root", tmp_path / "layers"
    root.mkdir(), layers.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", layers], check=True)
    (layers / "up").mkdir(), (layers / "work").mkdir()
    subprocess.run(["mount", "-t", "overlay", "machine", "-o",
                    f"lowerdir=/,upperdir={layers}/up,workdir={layers}/work", root], check=True)
    ann = root / "home/ann"
    ann.mkdir()
    (ann / "notes").write_text("only there\n")
    (root / "etc/hosts").write_text("203.0.113.9 the-other-machine\n")
    for p in (ann, ann / "notes"):
        os.chown(p, PRIVATE + 1000, PRIVATE + 1000)
    yield root
    subprocess.run(["umount", root], check=True)
    subprocess.run(["umount", layers], check=True)


def mirrored(root, script, *options):
    return subprocess.run([TRY, "--uid", "1000", "--gid", "1000", "--root", root, *options, "--", "/bin/sh", "-c", script],
                          capture_output=True, timeout=60, text=True)


def test_a_mirrored_root_shows_the_other_machines_files_and_the_nodes_own_places(machine):
    done = mirrored(machine, "cat /home/ann/notes && id -u && grep -c the-other /etc/hosts; cat /etc/hostname")
    assert done.stdout.split("\n")[:3] == ["only there", "1000", "0"], done
    assert done.stdout.split("\n")[3] == os.uname().nodename
    kinds = mirrored(machine, "stat -f -c %T /proc /sys /dev /tmp /run").stdout.split()
    assert kinds == ["proc", "sysfs", "tmpfs", "tmpfs", "tmpfs"]


def test_what_is_written_to_a_mirrored_root_is_dropped(machine):
    done = mirrored(machine, "echo more >> /home/ann/notes; rm -r /home/ann/notes; echo x > /home/ann/new; ls /home/ann")
    assert (done.returncode, done.stdout) == (0, "new\n"), done
    assert (machine / "home/ann/notes").read_text() == "only there\n"
    assert not (machine / "home/ann/new").exists()


def test_every_id_of_a_mirrored_root_is_private_outside(machine, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, PRIVATE + 1000, PRIVATE + 1000)
    done = mirrored(machine, "echo written > f; mkdir d; ln -s f l", "--view", f"{project}=/home/ann/project", "--cwd",
                    "/home/ann/project")
    assert done.returncode == 0, done
    assert (project / "f").read_text() == "written\n"
    assert {p.lstat().st_uid for p in project.iterdir()} == {PRIVATE + 1000}
    # A file of this machine's own user 1000 is nobody's inside, however the number is claimed.
    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, 1000, 1000)
    mine.chmod(0o755)
    done = mirrored(machine, "touch /home/ann/mine/x", "--view", f"{mine}=/home/ann/mine")
    assert done.returncode != 0 and not (mine / "x").exists(), done


def test_a_shared_folder_under_a_mirrored_root_knows_its_owner_by_the_administrators_word(machine, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    for name, uid in (("mine", 4321), ("others", 1000)):  # inside the person is 1000: that number proves nothing
        (shared / name).mkdir(mode=0o755)
        os.chown(shared / name, uid, uid)
    script = f"touch {shared}/mine/x; touch {shared}/others/x; stat -c %u {shared}/mine"
    done = mirrored(machine, script, "--host-uid", "4321", "--host-gid", "4321", "--bind", shared)
    assert done.stdout == "1000\n", done
    assert (shared / "mine/x").stat().st_uid == 4321
    assert not (shared / "others/x").exists()
    (shared / "mine/x").unlink()
    mirrored(machine, script, "--bind", shared)
    assert not (shared / "mine/x").exists(), "control: nobody vouches for the person"


@pytest.mark.parametrize("where", ["/var/tmp", "/dev/shm"])
def test_a_mirrored_root_gets_the_nodes_driver_libraries(machine, tmp_path, where):
    with tempfile.TemporaryDirectory(dir=where) as name:  # drivers may lie on any file system of the node
        folder = Path(name)
        folder.chmod(0o755)
        drivers_are_found(machine, tmp_path, folder)


def drivers_are_found(machine, tmp_path, folder):
    (tmp_path / "d.c").write_text("int answer(void) { return 42; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libmadeup.so.1.2", tmp_path / "d.c"], check=True)
    (folder / "libmadeup.so.1").symlink_to("libmadeup.so.1.2")
    script = "python3 -c 'import ctypes; print(ctypes.CDLL(\"libmadeup.so.1\").answer())'"
    assert mirrored(machine, script).returncode != 0, "control"
    done = mirrored(machine, script, "--library", folder / "libmadeup.so.1")
    assert done.stdout == "42\n", done
    assert mirrored(machine, "true", "--library", tmp_path / "gone/libgone.so").returncode == 0, "replaced meanwhile"
    done = mirrored(machine, "rm -f /run/virga-node/0/libmadeup.so.1; echo > /run/virga-node/0/x", "--library",
                    folder / "libmadeup.so.1")
    assert sorted(p.name for p in folder.iterdir()) == ["libmadeup.so.1", "libmadeup.so.1.2"]


def test_every_failing_step_of_a_mirrored_root_leaves_nothing(machine):
    before = traces()
    done = subprocess.run([TRY, "--faults", "--root", machine, "--library", "/usr/bin/env"], capture_output=True, timeout=120)
    assert done.returncode == 0, done
    assert int(done.stdout.split()[0]) >= 15
    assert traces() == before


def test_files_that_are_laid_over_others_are_read_only_and_only_there(tmp_path):
    with tempfile.TemporaryDirectory(dir="/opt") as name:
        real = Path(name) / "lib.so.2"
        Path(name).chmod(0o755)
        real.write_text("real\n")
        (Path(name) / "lib.so").symlink_to("lib.so.2")
        ours = tmp_path / "ours"
        ours.write_text("ours\n")
        lay = ["--lay", f"{ours}={name}/lib.so", "--lay", f"{ours}={real}", "--lay", f"{ours}={name}/more/lib.so",
               "--lay", f"{real}=/run/virga/vgpu/real/lib.so"]
        script = f"cd {name}; cat lib.so lib.so.2 more/lib.so /run/virga/vgpu/real/lib.so /run/virga/vgpu/page; " \
                 "for f in lib.so /run/virga/vgpu/page /run/virga/vgpu/new /run/virga/vgpu/real/lib.so; do echo x >> $f; done; " \
                 "umount /run/virga/vgpu; mount -o remount,rw /run/virga/vgpu; echo x > /run/virga/vgpu/new; unlink lib.so.2"
        r = sandbox("/bin/sh", "-c", script, options=["--net", "none", *lay])
        assert r.stdout == b"ours\nours\nours\nreal\nshown\n", r.stderr
        assert r.stderr.count(b"cannot create") == 5, r.stderr
        assert (real.read_text(), ours.read_text()) == ("real\n", "ours\n")
        assert not (Path(name) / "more").exists()
        r = sandbox("/bin/cat", real, options=["--net", "none"])
        assert r.stdout == b"real\n", "control"


def test_a_file_that_cannot_be_laid_keeps_the_command_from_starting(tmp_path):
    for lay in (f"{tmp_path}/none=/usr/lib/x", f"{tmp_path}=/usr/lib/x", "/bin/sh=/usr/lib"):
        r = sandbox("/bin/echo", "began", options=["--net", "none", "--lay", lay])
        assert r.returncode == 125 and r.stdout == b"" and lay.split("=")[0].encode() in r.stderr, r


def test_a_sandbox_with_files_laid_into_it_serves_one_command(tmp_path):
    ours = tmp_path / "ours"
    ours.write_text("ours\n")
    options = ["--net", "none", "--repeat", "1", "--warm", "2", "--lay", f"{ours}=/usr/lib/x"]
    r = sandbox("/bin/echo", "ran", options=options)
    assert r.stdout == b"ran\n" and b"has such files already" in r.stderr, r


# ---- a share of a GPU ------------------------------------------------------------------------------------------------

# Calls of the kind that the driver's library makes, on a descriptor that is no card: without a warden the kernel says
# ENOTTY to all of them.
CALLS = r"""
import ctypes, fcntl, mmap, os, struct, sys
fd = os.open("/dev/null", os.O_RDWR)
def call(number, data):
    try:
        fcntl.ioctl(fd, 3 << 30 | len(data) << 16 | 0x46 << 8 | number, bytearray(data))
        return 0
    except OSError as e:
        return e.errno
memory = ctypes.create_string_buffer(struct.pack("16xQ", 0)[:8] + bytes(56) + struct.pack("QQ", 8 << 30, 0))
alloc = struct.pack("IIIIQQIIII", 1, 1, 2, 0x40, ctypes.addressof(memory), 0, 0, 0, 0x77, 0)
print("heap", call(0x4A, bytes(64)), "import", call(0x5D, bytes(16)), "root", call(0x2B, bytes(48)), "ask", call(0x2A, bytes(32)))
a = bytearray(alloc)
try:
    fcntl.ioctl(fd, 3 << 30 | 48 << 16 | 0x462B, a)
    print("alloc status", struct.unpack_from("I", a, 40)[0])
except OSError as e:
    print("alloc errno", e.errno)
"""


@pytest.mark.parametrize("tty", [False, True])
def test_a_shared_gpus_calls_pass_by_its_warden(tty):
    options = ["--net", "none", "--share", "1G"] + (["--tty"] if tty else [])
    r = sandbox("/usr/bin/python3", "-c", CALLS, options=options, stdin=subprocess.DEVNULL)
    assert r.returncode == 0, r.stderr
    said = r.stdout.replace(b"\r", b"")
    # Older ways and imports are refused; a client and a question go on to the kernel; 8 GiB are more than the share.
    assert b"heap 1 import 1 root 25 ask 25\n" in said
    assert b"alloc status 81\n" in said
    assert b"refused=1 strange=2" in r.stderr


def test_without_a_share_nothing_passes_by():
    r = sandbox("/usr/bin/python3", "-c", CALLS, options=["--net", "none"])
    assert r.stdout == b"heap 25 import 25 root 25 ask 25\nalloc errno 25\n", r.stderr


def test_what_a_watched_command_starts_is_watched_too():
    r = sandbox("/bin/sh", "-c", 'env -i /usr/bin/python3 -c "$1"; true', "sh", CALLS, options=["--net", "none", "--share", "1G"])
    assert b"alloc status 81\n" in r.stdout, r.stderr
