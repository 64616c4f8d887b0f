"""Secrets: what a task gets, who may have it, and that the value is nowhere else: not on disk, in lists, in other
processes' memory as the kernel shows it, nor in a core dump."""
import os
import secrets
import shutil
import signal
import sqlite3
import stat
import subprocess

import pytest
from test_mirror_secrets import files_with
from test_users import GROUP, Person
from virga import LONG, children_of, descendants_of, pids, read_bytes, wait_for

CONFIG = f"""
access:
  groups: [{GROUP}]
"""


@pytest.fixture(scope="module", autouse=True)
def group():
    """There before the cloud is."""
    subprocess.run(["groupadd", "-f", GROUP], check=True)
    yield
    subprocess.run(["groupdel", GROUP], check=False)


def set_secret(cloud, name, value, *more):
    cloud.virga("secret", "set", name, *more, input=value, check=0)


def value():
    return secrets.token_hex(24).encode()


def got(cloud, ref, **kw):
    """What a task has in the variable V when it asks for the secret."""
    done = cloud.vrun("--secret", f"{ref}=V", "sh", "-c", 'printf %s "$V" | sha256sum', **kw)
    return done.stdout.split()[0].decode() if done.returncode == 0 else done.stderr.decode()


def sha(data):
    return subprocess.run(["sha256sum"], input=data, stdout=subprocess.PIPE, check=True).stdout.split()[0].decode()


def test_as_a_variable_and_as_a_file(cloud):
    v = value()
    set_secret(cloud, "TOKEN", v + b"\n")  # a line's end is not part of it
    assert got(cloud, "TOKEN") == sha(v)
    assert cloud.vrun("--secret", "TOKEN", "sh", "-c", "test -n \"$TOKEN\"", env={**cloud.env, "TOKEN": "mine"}, check=0)
    blob = cloud.work / "blob"
    blob.write_bytes(bytes(range(256)) * 256)
    set_secret(cloud, "blob", None, "--file", str(blob))
    done = cloud.vrun("--secret", "blob:key.bin", "--secret", "TOKEN:t", "sh", "-c",
                      "sha256sum < $VIRGA_SECRETS/key.bin; stat -c '%a %u %s' /run/secrets/key.bin; stat -fc %T /run/secrets;"
                      " touch /run/secrets/x; env | grep -c ^TOKEN=")
    assert done.stdout.decode().split() == [sha(blob.read_bytes()), "-", "400", "0", "65536", "tmpfs", "0"], done.stderr
    assert b"zero byte" in cloud.vrun("--secret", "blob=B", "true").stderr
    shown = cloud.json("secret", "list")
    assert {s["name"]: s["size"] for s in shown} == {"TOKEN": len(v), "blob": 65536}


def test_a_session_and_a_batch_get_them_too(cloud):
    v = value()
    set_secret(cloud, "S", v)
    for i in range(2):
        assert got(cloud, "S", env=cloud.env) == sha(v)
        done = cloud.vrun("-s", "keep", "--secret", f"S:f{i}", "sh", "-c", "cat /run/secrets/*", check=0)
        assert done.stdout == v * (i + 1)
    task = cloud.out("vbatch", "-N", "2", "--secret", "S", "sh", "-c", "test -n \"$S\"")
    cloud.virga("task", "wait", task, check=0)
    cloud.virga("session", "end", "keep", check=0)


def test_what_cannot_be_is_said_in_a_sentence(cloud):
    assert b"on the command line" in cloud.virga("secret", "set", "X", "value").stderr
    assert b"is empty" in cloud.virga("secret", "set", "X", input=b"\n").stderr
    assert b"more than 65536 bytes" in cloud.virga("secret", "set", "X", input=b"x" * 70000).stderr
    assert b"there is no secret 'NOPE'" in cloud.vrun("--secret", "NOPE", "true").stderr
    assert b"not of the form" in cloud.vrun("--secret", "NOPE=", "true").stderr
    assert b"cannot become a variable" in cloud.vrun("--secret", "hf-token", "true").stderr
    assert b"no team" in cloud.virga("secret", "set", "X", "--team", "nowhere", input=b"x").stderr


def test_the_value_is_nowhere_but_in_the_task(cloud):
    if not shutil.which("useradd") or not shutil.which("setpriv"):
        pytest.skip("useradd and setpriv are needed")
    os.chmod(cloud.home, 0o711)
    owner, other = Person(GROUP + "o", [GROUP]), Person(GROUP + "p", [GROUP])
    try:
        v = value()
        owner.run(cloud, "virga", "secret", "set", "DEEP", input=v, check=0)
        ready = f"{owner.home}/ready"
        p = subprocess.Popen(["setpriv", f"--reuid={owner.uid}", f"--regid={owner.gid}", "--init-groups", "--", "vrun",
                              "--secret", "DEEP", "--secret", "DEEP:deep", "--secret", "DEEP=AGAIN", "sh", "-c",
                              f"echo > {ready}; exec sleep 300"], cwd=owner.home, stdin=subprocess.DEVNULL,
                             env={**cloud.env, "HOME": owner.home, "USER": owner.name})
        try:
            wait_for("the task to run", lambda: os.path.exists(ready))
            # The control: the search finds it where it must be, in the task's own environment.
            has = [pid for pid in pids() if v in read_bytes(f"/proc/{pid}/environ")]
            assert has and all(b"sleep" in read_bytes(f"/proc/{pid}/cmdline") for pid in has)
            assert not [pid for pid in pids() if v in read_bytes(f"/proc/{pid}/cmdline")]
            # The other user sees neither that environment nor the sandbox's files.
            done = other.run(cloud, "sh", "-c", "grep -la DEEP /proc/[0-9]*/environ /proc/[0-9]*/root/run/secrets/* 2>/dev/null")
            assert not done.stdout
            # Whoever the value passed through keeps its memory to itself: no dump, no look from outside.
            hands = [cloud.pid("virgad"), cloud.pid("agent")]
            hands += [k for k in children_of(cloud.pid("agent")) if set(descendants_of(k)) & set(has)]
            assert len(hands) >= 3
            for pid in hands:
                done = subprocess.run(["setpriv", f"--reuid={owner.uid}", "--clear-groups", "cat", f"/proc/{pid}/maps"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
                assert done.returncode != 0 and not done.stdout
            everything_on_disk(cloud, owner, v)
            core_dumps(cloud, hands, v)
        finally:
            p.send_signal(signal.SIGTERM)
            p.wait(30)
    finally:
        owner.remove()
        other.remove()


def files_since(*folders, since):
    """What was written there since then, by whomever; what is larger than 16 MiB is somebody else's."""
    for folder in folders:
        for where, _, files in os.walk(folder):
            for name in files:
                path = os.path.join(where, name)
                try:
                    st = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISREG(st.st_mode) and st.st_mtime >= since and st.st_size < 16 << 20:
                    yield path


def everything_on_disk(cloud, owner, v):
    for folder in (cloud.home, owner.home, cloud.work):
        assert not files_with(folder, v), folder
    for path in files_since("/tmp", "/var/tmp", "/dev/shm", "/run", "/var/lib", "/var/log", since=os.stat(owner.home).st_mtime - 1):
        assert v not in read_bytes(path), path
    dump = "\n".join(sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True).iterdump()).encode()
    assert b"DEEP" in dump and v not in dump and v.hex().encode() not in dump.lower()
    for words in (["task", "list", "-A"], ["secret", "list"], ["status"], ["node", "list"], ["session", "list"]):
        out = cloud.virga(*words, "-o", "json", check=0).stdout
        assert v not in out
    for task in cloud.json("task", "list", "-A"):
        out = cloud.virga("task", "get", task["id"], "-o", "json", check=0).stdout
        assert v not in out and (b"DEEP" in out or task["user"] != owner.name)


def core_dumps(cloud, hands, v):
    """Whoever is made to crash leaves nothing, where another process does."""
    pattern = "/proc/sys/kernel/core_pattern"
    before = open(pattern).read()
    cores = cloud.work / "cores"
    cores.mkdir()
    try:
        with open(pattern, "w") as f:
            f.write(f"{cores}/core.%p")
    except OSError:
        return  # not this machine's to say
    try:
        control = subprocess.Popen(["sh", "-c", f"ulimit -c unlimited; MARK={v.decode()} exec sleep 60"])
        wait_for("it to execute", lambda: b"sleep" in read_bytes(f"/proc/{control.pid}/cmdline"))
        control.send_signal(signal.SIGABRT)
        control.wait()
        found = files_with(cores, v)
        virgad = hands[0]
        subprocess.run(["prlimit", "--core=unlimited", f"--pid={virgad}"], check=False)
        os.kill(virgad, signal.SIGABRT)
        wait_for("virgad to come back", lambda: cloud.pid("virgad") not in (None, virgad) and
                 cloud.virga("status").returncode == 0)
        if found:  # cores can be made here at all
            assert not (cores / f"core.{virgad}").exists()
            assert files_with(cores, v) == found
    finally:
        with open(pattern, "w") as f:
            f.write(before)
        shutil.rmtree(cores, ignore_errors=True)


def test_a_program_inside_passes_on_only_what_it_was_given(cloud):
    set_secret(cloud, "GIVEN", b"one")
    set_secret(cloud, "KEPT", b"two")
    script = 'vrun --secret GIVEN sh -c "echo $GIVEN"; vrun --secret KEPT true; echo x | virga secret set GIVEN; virga secret remove KEPT'
    done = cloud.vrun("--secret", "GIVEN", "sh", "-c", script)
    assert done.stdout == b"one\n"
    assert b"only secrets that its task was given" in done.stderr
    names = {s["name"]: s["version"] for s in cloud.json("secret", "list")}
    assert names["GIVEN"] == 1 and "KEPT" in names


def test_a_team_has_secrets_that_its_leads_set(cloud):
    v = value()
    cloud.virga("team", "add", "vision", check=0)
    tokens = {}
    for name, team, role in (("lena", "vision", "lead"), ("mia", "vision", "member"), ("zoe", "main", "member")):
        cloud.virga("user", "add", name, "--team", team, "--role", role, check=0)
        tokens[name] = cloud.out("virga", "token", "create", "--user", name)
    homes = {}
    address = cloud.json("status")["address"]
    for name, token in tokens.items():
        homes[name] = {**cloud.env, "VIRGA_HOME": str(cloud.work / name)}
        cloud.virga("login", address, "--token", token, env=homes[name], check=0)
    as_user = lambda name, *argv, **kw: cloud.virga(*argv, env=homes[name], **kw)  # noqa: E731
    refused = as_user("mia", "secret", "set", "WB", "--team", "vision", input=v)
    assert refused.returncode != 0 and b"only a lead of team" in refused.stderr
    assert b"only a lead of team" in as_user("zoe", "secret", "set", "WB", "--team", "vision", input=v).stderr
    as_user("lena", "secret", "set", "WB", "--team", "vision", input=v, check=0)
    run = lambda name, ref: cloud.run(["vrun", "--env", "node", "-C", "/", "--secret", f"{ref}=V", "sh", "-c",  # noqa: E731
                                       'printf %s "$V"'], env=homes[name])
    assert run("mia", "vision/WB").stdout == v
    assert b"your team has one: write --secret vision/WB" in run("mia", "WB").stderr
    stranger, nothing = run("zoe", "vision/WB").stderr, run("zoe", "vision/NONE").stderr
    assert stranger.replace(b"WB", b"NONE") == nothing  # it does not even say that there is one
    assert as_user("zoe", "secret", "list", "-o", "json").stdout.strip() == b"[]"
    # Who leaves the team has it no more, not even in a task that waits already.
    node = cloud.json("node", "list")[0]["name"]
    cloud.virga("node", "drain", node, check=0)
    task = cloud.out("vbatch", "--env", "node", "-C", "/", "--secret", "vision/WB", "true", env=homes["mia"])
    cloud.virga("user", "set", "mia", "--team", "main", check=0)
    cloud.virga("node", "resume", node, check=0)
    done = cloud.wait_state(task, "failed", "succeeded")
    assert done["state"] == "failed" and "there is no secret 'vision/WB'" in str(done), done
    # A name that comes again does not find what it had.
    as_user("zoe", "secret", "set", "MINE", input=v, check=0)
    cloud.virga("user", "rm", "zoe", check=0)
    cloud.virga("user", "add", "zoe", "--team", "main", check=0)
    again = {**cloud.env, "VIRGA_HOME": str(cloud.work / "again")}
    cloud.virga("login", address, "--token", cloud.out("virga", "token", "create", "--user", "zoe"), env=again, check=0)
    assert cloud.virga("secret", "list", "-o", "json", env=again).stdout.strip() == b"[]"


def test_a_rotation_that_is_killed_loses_nothing(make_cloud):
    cloud = make_cloud()
    cloud.up()
    wanted = {}
    for i in range(200 if LONG else 40):
        wanted[f"S{i}"] = value()
        set_secret(cloud, f"S{i}", wanted[f"S{i}"])
    key = cloud.home / "control" / "master.key"
    first = key.read_text()
    for delay in (0, 0.001, 0.003, 0.006, 0.01):
        rotate = cloud.popen(["virga", "secret", "rotate"])
        try:
            rotate.wait(delay or 0.0005)
        except subprocess.TimeoutExpired:
            pass
        old = cloud.pid("virgad")
        os.kill(old, signal.SIGKILL)
        rotate.wait(60)
        rotate.communicate()
        wait_for("virgad to come back", lambda: cloud.pid("virgad") not in (None, old) and
                 cloud.virga("status").returncode == 0)
        for name in list(wanted)[:: max(1, len(wanted) // 8)]:
            assert got(cloud, name) == sha(wanted[name]), (name, delay)
    done = cloud.virga("secret", "rotate", check=0)
    assert f"{len(wanted)} secrets are sealed anew".encode() in done.stderr
    assert len(key.read_text().split()) == 1 and key.read_text() != first
    rows = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True).execute("SELECT DISTINCT key FROM secrets")
    assert len(rows.fetchall()) == 1
    for name, v in list(wanted.items())[::10]:
        assert got(cloud, name) == sha(v)


def test_keys_of_a_program(make_cloud):
    keys = make_cloud().work / "keys"  # its folder is removed with it
    keys.write_text(secrets.token_hex(32) + "\n")
    cloud = make_cloud(f"secrets: {{key_command: [cat, {keys}]}}\n")
    cloud.up()
    v = value()
    set_secret(cloud, "P", v)
    assert not (cloud.home / "control" / "master.key").exists()
    keys.write_text(keys.read_text() + secrets.token_hex(32) + "\n")
    cloud.virga("secret", "rotate", check=0)
    keys.write_text(keys.read_text().split()[1] + "\n")  # the old one can go
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("virgad to come back", lambda: cloud.pid("virgad") not in (None, old) and cloud.virga("status").returncode == 0)
    assert got(cloud, "P") == sha(v)
    keys.unlink()
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("virgad to come back", lambda: cloud.pid("virgad") not in (None, old) and cloud.virga("status").returncode == 0)
    assert "secrets.key_command) failed" in got(cloud, "P")
    cloud.vrun("true", check=0)


def test_on_another_machine_it_is_in_memory_alone(far):
    """Over TLS, with mirrored files, through a gang and a restart of the agent: every way by which a Start is packed anew."""
    laptop, node = far.laptop, far.nodes[0]
    v = value()
    laptop.virga("secret", "set", "FAR", input=v, check=0)
    done = laptop.vrun("--secret", "FAR=V", "--secret", "FAR:f", "sh", "-c", '(cat /run/secrets/f; printf %s "$V") | sha256sum', check=0)
    assert done.stdout.split()[0].decode() == sha(v + v), done.stderr
    gang = laptop.out("vbatch", "--env", "node", "-C", "/", "--gang", "-N", "2", "--secret", "FAR", "sh", "-c", 'test ${#FAR} = 48')
    laptop.virga("task", "wait", gang, check=0)
    ready = laptop.work / "ready"
    p = laptop.popen(["vrun", "--secret", "FAR", "sh", "-c", f"touch {laptop.inner}/ready; read x; printf %s \"$FAR\""], stdin=subprocess.PIPE)
    wait_for("the task to run", ready.exists)
    node.restart_agent()
    wait_for("the node to be ready", lambda: far.control.json("node", "list")[0]["state"] == "ready")
    for host in (node, far.control):
        assert not files_with(host.home, v), host.name
    out, err = p.communicate(b"\n", timeout=60)
    assert out == v, err
    # Its output is what it printed: the control, in the control plane's own folder, for the search above.
    wait_for("the log to be stored", lambda: files_with(far.control.home, v))
    assert all("/logs/" in path for path in files_with(far.control.home, v))
