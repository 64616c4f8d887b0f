"""Every mistake that a person can make in the first hour gets one sentence: its cause and what to do.

A good message is one line on stderr that starts with the program's name, nothing on stdout, and a status of
its own (125 for Virga's refusals, 126 and 127 as a shell has them)."""
import os
import pwd
import re
import signal
import socket
import subprocess

import pytest
from virga import WAIT_S, Cloud, programs_for_all, status_field, wait_for

CONFIG = """
pools:
  - name: default
  - name: gpus
    shape: {gpus: 1}
default_pool: default
"""


def sentence(done, *patterns, status=125, program=None):
    """Checks a message and returns it."""
    text = done.stderr.decode()
    assert done.returncode == status, (done.returncode, text)
    assert done.stdout == b""
    assert text.endswith("\n") and text.count("\n") == 1, f"not one line: {text!r}"
    assert re.match(rf"^({program or 'virga|vrun|vbatch|virga attach'}): \S", text), text
    assert len(text) < 400, text
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern!r} is not in {text!r}"
    return text


@pytest.fixture(scope="module")
def nobody_home():
    """No cloud at all."""
    cloud = Cloud()
    yield cloud
    cloud.remove()


# ---------------------------------------------------------------------- no cloud, wrong cloud


@pytest.mark.parametrize("argv", [["vrun", "true"], ["vbatch", "true"], ["virga", "task", "list"],
                                  ["virga", "status"], ["virga", "attach", "abcdef"]], ids=" ".join)
def test_no_server(nobody_home, argv):
    sentence(nobody_home.run(argv), "no Virga cloud answers", "virga up", "virga login")


def test_no_server_but_its_socket_is_left(nobody_home):
    path = nobody_home.home / "sock"
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.close()
    sentence(nobody_home.vrun("true"), "no Virga cloud answers", "virga up")
    path.unlink()


def test_remote_server_that_does_not_answer(nobody_home):
    token = "vgt_0011223344556677_00112233445566778899aabbccddeeff_00112233445566778899aabbccddeeff"
    done = nobody_home.virga("login", "127.0.0.1:1", "--token", token)
    sentence(done, "127.0.0.1:1", "refused|answer")


def test_wrong_token(cloud):
    address = cloud.json("status")["address"]
    good = cloud.out("virga", "token", "create")
    prefix, ident, secret, ca = good.split("_")
    bad = "_".join((prefix, ident, "0" * len(secret), ca))
    other = Cloud()
    try:
        sentence(other.virga("login", address, "--token", bad), "token", "virga token create|ask|administrator")
        assert other.virga("login", address, "--token", good).returncode == 0
        assert other.vrun("echo", "in", cwd="/").stdout == b"in\n"
        ident_only = cloud.json("token", "list")[0]["id"]
        assert cloud.virga("token", "revoke", ident_only).returncode == 0
        sentence(other.vrun("true", cwd="/"), "token", "virga token create|virga login|ask|administrator")
    finally:
        other.remove()


def test_token_of_another_cloud(cloud):
    address = cloud.json("status")["address"]
    good = cloud.out("virga", "token", "create")
    prefix, ident, secret, ca = good.split("_")
    other = Cloud()
    try:
        sentence(other.virga("login", address, "--token", "_".join((prefix, ident, secret, "0" * len(ca)))),
                 "another cloud|certificate|fingerprint|not the cloud", "token|address|log")
    finally:
        other.remove()


def test_token_that_is_no_token(nobody_home):
    sentence(nobody_home.virga("login", "127.0.0.1:1", "--token", "hello"), "token", "virga token create|vgt_")


# ---------------------------------------------------------------------- asking for what is not there


def test_unknown_pool(cloud):
    sentence(cloud.vrun("-P", "a100", "true"), "a100", "virga pool list|default")


def test_unknown_pool_that_is_nearly_one(cloud):
    sentence(cloud.vrun("-P", "gpu", "true"), "gpu", "gpus|virga pool list")


def test_no_capacity_ever(cloud):
    """More than any node has: waiting would not help, so it is refused at once."""
    sentence(cloud.vrun("--cpus", "3000", "true"), "3000", "CPU")
    sentence(cloud.vrun("--mem", "900T", "true"), "memory|900")
    sentence(cloud.vrun("--gpus", "8", "true"), "GPU")


def test_pool_whose_nodes_lack_the_shape(cloud):
    sentence(cloud.vrun("-P", "gpus", "true"), "gpus", "GPU")


@pytest.mark.parametrize("verb", ["get", "logs", "wait", "cancel"])
def test_unknown_task(cloud, verb):
    sentence(cloud.virga("task", verb, "deadbeef"), "deadbeef", "virga task list")


def test_unknown_task_to_attach(cloud):
    sentence(cloud.virga("attach", "deadbeef"), "deadbeef", "virga task list")


def test_unknown_node(cloud):
    sentence(cloud.virga("node", "drain", "nowhere"), "nowhere", "virga node list")


def test_unknown_session(cloud):
    sentence(cloud.virga("session", "end", "nowhere"), "nowhere", "virga session list")


# ---------------------------------------------------------------------- the command


def test_missing_command(cloud):
    sentence(cloud.vrun("no-such-program"), "no-such-program", "(?i)not found|no such file", status=127, program="vrun")


def test_missing_path(cloud):
    sentence(cloud.vrun("./no-such-file"), "no-such-file", "(?i)not found|no such file", status=127, program="vrun")


def test_not_executable(cloud):
    (cloud.work / "data").write_text("x")
    sentence(cloud.vrun("./data"), "data", "(?i)permission|executable", status=126, program="vrun")


def test_directory_as_command(cloud):
    sentence(cloud.vrun("/usr"), "/usr", "(?i)directory|permission", status=126, program="vrun")


def test_bad_interpreter(cloud):
    script = cloud.work / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = cloud.vrun("./script")
    assert done.returncode in (126, 127)
    sentence(done, "script", status=done.returncode, program="vrun")


def test_no_command(cloud):
    sentence(cloud.vrun(), "no command", "--help|vrun")
    sentence(cloud.run(["vbatch"]), "no command", "--help|vbatch")


def test_missing_directory(cloud):
    sentence(cloud.vrun("-C", "/no/such/place", "true"), "/no/such/place")


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize("argv,patterns", [
    (["vrun", "--frobnicate", "true"], ["--frobnicate", "--help"]),
    (["vrun", "--sesion", "x", "true"], ["--sesion", "--session"]),
    (["vrun", "-Z", "true"], ["-Z", "--help"]),
    (["vrun", "--cpus", "many", "true"], ["many", "CPU|number|0.5"]),
    (["vrun", "--mem", "lots", "true"], ["lots", "512M|8G|size"]),
    (["vrun", "--time", "soon", "true"], ["soon", "90s|10m|duration"]),
    (["vrun", "--gpus", "-1", "true"], ["-1"]),
    (["vrun", "-p", "nonsense", "true"], ["nonsense"]),
    (["vrun", "--tty", "maybe", "true"], ["maybe", "auto"]),
    (["vrun", "-l", "novalue", "true"], ["novalue", "KEY=VALUE|k=v"]),
    (["vrun", "-P"], ["-P", "value|NAME"]),
    (["virga", "frobnicate"], ["frobnicate", "virga help"]),
    (["virga", "tsk", "list"], ["tsk", "task"]),
    (["virga", "task", "lst"], ["lst", "list"]),
    (["virga", "task", "get"], ["TASK", "--help"]),
    (["virga", "task", "list", "-o", "yaml"], ["yaml", "json"]),
    (["virga", "up", "extra"], ["extra", "--help"]),
], ids=lambda v: " ".join(v) if isinstance(v, list) else None)
def test_bad_option(cloud, argv, patterns):
    sentence(cloud.run(argv), *patterns)


# ---------------------------------------------------------------------- rights


def as_nobody(cloud, argv, **env):
    """Runs as an ordinary user of the machine."""
    user = pwd.getpwnam("nobody")
    argv = [str(programs_for_all() / argv[0]), *argv[1:]]
    return subprocess.run(argv, env={**cloud.env, **env}, cwd="/", user=user.pw_uid, group=user.pw_gid,
                          extra_groups=[], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60, check=False)


def test_up_without_root(nobody_home):
    sentence(as_nobody(nobody_home, ["virga", "up"], VIRGA_HOME="/tmp/vg-nobody"), "needs root", "sudo|virga login")


def test_a_user_who_was_not_let_in(cloud):
    os.chmod(cloud.home, 0o711)
    sentence(as_nobody(cloud, ["vrun", "true"]), "may not use|not allowed|not a user", "administrator|token|virga login")


def test_a_user_who_was_let_in_runs_as_themselves(make_cloud):
    cloud = make_cloud("access:\n  users: [nobody]\n")
    os.chmod(cloud.home, 0o711)
    cloud.up()
    done = as_nobody(cloud, ["vrun", "id", "-un"])
    assert (done.returncode, done.stdout) == (0, b"nobody\n"), done.stderr


# ---------------------------------------------------------------------- configuration


@pytest.mark.parametrize("text,patterns", [
    ("poolz: []\n", ["config.yaml:1", "poolz", "pools"]),
    ("pools:\n  - name: 'bad name'\n", ["config.yaml:2", "name"]),
    ("lease: soon\n", ["config.yaml:1", "lease"]),
    ("pools: [\n", ["config.yaml"]),
    ("default_pool: nowhere\n", ["nowhere", "pool"]),
])
def test_bad_configuration(text, patterns):
    cloud = Cloud(config=text)
    try:
        sentence(cloud.virga("up"), *patterns)
        left = cloud.leftovers()
        assert not left
    finally:
        cloud.kill_leftovers()
        cloud.remove()


def test_listen_address_in_use(cloud):
    address = cloud.json("status")["address"]
    other = Cloud(config=f"listen: {address}\n")
    try:
        sentence(other.virga("up"), re.escape(address), "(?i)in use|listen")
    finally:
        other.virga("down")
        other.kill_leftovers()
        other.remove()


# ---------------------------------------------------------------------- the server going away


def test_server_goes_away_for_good(make_cloud):
    cloud = make_cloud()
    cloud.up()
    p = cloud.popen(["vrun", "sh", "-c", "echo ready; exec sleep 300"])
    assert p.stdout.readline() == b"ready\n"
    assert cloud.down().returncode == 0
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode != 0
    assert err.count(b"\n") == 1 and err.startswith(b"vrun: "), err


def waits_on_socket(pid):
    """It is connected, and asleep until something comes."""
    try:
        fds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any(fd.startswith("socket:") for fd in fds) and (status_field(pid, "State") or "").startswith("S")


@pytest.mark.parametrize("verb", [["wait"], ["logs", "-f"], ["watch"]], ids=" ".join)
def test_server_goes_away_while_a_command_follows(make_cloud, verb):
    """It may only be restarting: the command says so, and waits."""
    cloud = make_cloud()
    cloud.up()
    task = cloud.out("vrun", "-d", "sleep", "300")
    p = cloud.popen(["virga", "task", *verb, task])
    wait_for("it to have asked", lambda: waits_on_socket(p.pid))
    cloud.wait_state(task, "running")
    for part in ("up", "virgad"):
        os.kill(cloud.pid(part), signal.SIGKILL)
    line = p.stderr.readline()
    assert line.startswith(b"virga: the control plane went away"), line
    cloud.up()
    assert cloud.virga("task", "cancel", task).returncode == 0
    if verb == ["watch"]:  # goes on for ever
        p.kill()
    assert p.wait(timeout=WAIT_S) == {"wait": 143, "logs": 0, "watch": -9}[verb[0]]
