"""OpenSSH into sessions: the real client, scp, sftp and rsync through what `virga ssh-config` writes."""
import filecmp
import os
import shutil
import socket
import subprocess

import oci
import pytest
from test_users import GROUP, Person
from virga import Terminal, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("ssh") or not os.path.exists("/usr/sbin/sshd"),
                                reason="OpenSSH's client and server are needed")
CONFIG = f"""
access:
  groups: [{GROUP}]
"""


class Ssh:
    """The programs of OpenSSH with the cloud's configuration and nothing of the person who runs the tests."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.config = cloud.work / "ssh_config"
        self.config.write_bytes(cloud.virga("ssh-config", check=0).stdout)

    def run(self, *argv, program="ssh", **kw):
        return self.cloud.run([program, "-F", str(self.config), *argv], **kw)

    def out(self, *argv, **kw):
        return self.run(*argv, check=0, **kw).stdout.decode()


@pytest.fixture(scope="module", autouse=True)
def group():
    """There before the cloud is."""
    subprocess.run(["groupadd", "-f", GROUP], check=True)
    yield
    subprocess.run(["groupdel", GROUP], check=False)


@pytest.fixture(scope="module")
def ssh(cloud):
    return Ssh(cloud)


def test_a_command_its_output_and_its_status(cloud, ssh):
    done = ssh.run("virga.cmd", "echo out; echo err >&2; cat; exit 7", input=b"in\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\nin\n", b"err\n", 7)
    done = cloud.virga("ssh", "cmd", "--", "exit 9")
    assert done.returncode == 9, done.stderr
    assert cloud.out("virga", "ssh", "cmd", "echo", "two words") == "two words"


def test_the_shell_sees_what_the_task_sees(cloud, ssh):
    env = {**cloud.env, "ODD": "a\n'b\" $c", "TERM": "vt100"}
    assert ssh.out("virga.env", 'printf %s "$ODD"', env=env) == env["ODD"]
    assert len(ssh.out("virga.env", "echo $VIRGA_TASK_ID").strip()) == 16
    assert ssh.out("virga.env", "test -z \"$SSH_ORIGINAL_COMMAND\" && echo $SSH_CONNECTION").startswith("UNKNOWN")
    # It is the session's own place, not the machine.
    cloud.vrun("-s", "env", "sh", "-c", "echo here > /tmp/marker", check=0)
    assert ssh.out("virga.env", "cat /tmp/marker") == "here\n"
    assert not os.path.exists("/tmp/marker")


def test_a_terminal(cloud, ssh):
    t = Terminal(["ssh", "-F", str(ssh.config), "-tt", "virga.tty"], cloud.env, cloud.work, rows=31, cols=77)
    t.expect(r"[$#] ")
    t.send("tty; stty size; echo $TERM-$((6*7))\n")
    t.expect(r"/dev/pts/\d+\r\n31 77\r\nxterm-42")
    t.send("exit 3\n")
    assert t.wait() == 3


ODD = ["plain", "with space", "quote'\"q", "new\nline", "-dash", "dollar$(touch x)", "ü", "sub/deep/er"]


def tree(folder):
    for name in ODD:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(5000) + name.encode())
    (folder / "link").symlink_to("plain")
    (folder / "plain").chmod(0o640)
    return folder


def same(a, b):
    names = sorted(os.path.relpath(os.path.join(w, f), a) for w, _, fs in os.walk(a) for f in fs)
    assert names == sorted(os.path.relpath(os.path.join(w, f), b) for w, _, fs in os.walk(b) for f in fs)
    assert filecmp.cmpfiles(a, b, names, shallow=False)[1:] == ([], [])


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is needed")
def test_rsync_both_ways(cloud, ssh):
    there, back = tree(cloud.work / "rs"), cloud.work / "back"
    how = ["-a", "-e", f"ssh -F {ssh.config}"]
    cloud.run(["rsync", *how, f"{there}/", "virga.files:/tmp/rs/"], check=0)
    assert ssh.out("virga.files", "stat -c %a /tmp/rs/plain; readlink /tmp/rs/link") == "640\nplain\n"
    cloud.run(["rsync", *how, "virga.files:/tmp/rs/", f"{back}/"], check=0)
    same(there, back)


def test_scp_and_sftp_both_ways(cloud, ssh):
    there, back = tree(cloud.work / "cp"), cloud.work / "cp-back"
    ssh.run("-q", "-r", str(there), "virga.files:/tmp/cp", program="scp", check=0)
    ssh.run("-q", "-r", "virga.files:/tmp/cp", str(back), program="scp", check=0)
    same(there, back)
    ssh.run("-q", "-O", str(there / "plain"), "virga.files:/tmp/old", program="scp", check=0)  # the old protocol
    big = cloud.work / "big"
    big.write_bytes(os.urandom(4 << 20))
    batch = f"put {big} /tmp/big\nmkdir /tmp/made\nrename /tmp/big /tmp/made/big\nget /tmp/made/big {big}.again\nls /tmp/made\n"
    done = ssh.run("-q", "-b", "-", "virga.files", program="sftp", input=batch.encode(), check=0)
    assert b"/tmp/made/big" in done.stdout
    assert filecmp.cmp(big, f"{big}.again", shallow=False)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_forwarded_port(cloud, ssh):
    port = free_port()
    server = ("import socket; s = socket.socket(); s.bind(('127.0.0.1', 4242)); s.listen(); print('ready', flush=True); "
              "c = s.accept()[0]; c.sendall(b'from ' + c.recv(9)); c.close()")
    p = cloud.popen(["ssh", "-F", str(ssh.config), "-L", f"{port}:127.0.0.1:4242", "virga.fwd", f'python3 -c "{server}"'])
    try:
        assert p.stdout.readline() == b"ready\n", p.stderr.read()
        with socket.create_connection(("127.0.0.1", port), 60) as c:
            c.sendall(b"inside")
            assert c.makefile("rb").read() == b"from inside"
        assert p.wait(60) == 0
    finally:
        p.kill()
        p.communicate()


@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="ssh-agent is needed")
def test_the_agent_is_forwarded(cloud, ssh):
    key = cloud.work / "mine"
    cloud.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "my own key", "-f", str(key)], check=0)
    script = f"ssh-add -q {key} && ssh -A -F {ssh.config} virga.fwd 'ssh-add -l'; kill $SSH_AGENT_PID"
    assert b"my own key" in cloud.run(["ssh-agent", "sh", "-c", script], check=0).stdout


def test_what_is_left_running_outlives_its_connection_as_editors_servers_do(cloud, ssh):
    server = "nohup sh -c 'while :; do sleep 0.1; echo alive > /tmp/beat; done' >/dev/null 2>&1 </dev/null & echo $! > /tmp/server"
    ssh.run("virga.left", server, check=0)
    ssh.run("virga.left", "rm -f /tmp/beat", check=0)
    wait_for("it to be alive", lambda: ssh.run("virga.left", "cat /tmp/beat").stdout == b"alive\n")
    ssh.run("virga.left", "kill $(cat /tmp/server)", check=0)
    # Several channels over one connection.
    control = f"{cloud.work}/mux"
    one = ["-o", f"ControlPath={control}", "-o", "ControlMaster=auto", "-o", "ControlPersist=120"]
    assert [ssh.out(*one, "virga.left", f"echo {i}") for i in range(3)] == ["0\n", "1\n", "2\n"]
    ssh.run(*one, "-O", "exit", "virga.left", check=0)


def test_two_connections_share_a_session_and_leave_nothing_of_theirs(cloud, ssh):
    first = cloud.popen(["ssh", "-F", str(ssh.config), "virga.two", "echo up; read x; echo $x"], stdin=subprocess.PIPE)
    assert first.stdout.readline() == b"up\n", first.stderr.read()
    assert ssh.out("virga.two", "echo second > /tmp/shared; echo ok") == "ok\n"
    first.stdin.write(b"first\n")
    first.stdin.flush()
    assert first.communicate(timeout=60)[0] == b"first\n" and first.returncode == 0
    assert ssh.out("virga.two", "cat /tmp/shared") == "second\n"
    left = wait_for("what belongs to connections to go", lambda: (
        got := cloud.out("vrun", "-s", "two", "sh", "-c", "cd /dev/shm/.virga-ssh-*; ls").split()) == ["host"] and got)
    assert left == ["host"]


def test_a_session_that_was_made_again_is_known_again(cloud, ssh):
    key = "ssh-keygen -y -f /dev/shm/.virga-ssh-0/host"
    before = ssh.out("virga.again", key)
    assert ssh.out("virga.again", key) == before
    cloud.virga("session", "end", "again", check=0)
    wait_for("the session to end", lambda: not any(s["name"] == "again" for s in cloud.json("session", "list")))
    after = ssh.out("virga.again", key)
    assert after != before
    known = (cloud.home / "ssh" / "known_hosts").read_text()
    assert known.count("virga.again ") == 1 and after.split()[1] in known


def test_a_wrong_host_key_is_refused(cloud, ssh):
    """The control: the key is looked at."""
    done = ssh.run("-o", "UserKnownHostsFile=/dev/null", "virga.cmd", "true")
    assert done.returncode == 255 and b"Host key verification failed" in done.stderr


def test_install_is_done_once(cloud):
    home = cloud.work / "person"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host other\n    User x\n")
    env = {**cloud.env, "HOME": str(home)}
    for word in (b"now", b"already"):
        assert word in cloud.virga("ssh-config", "--install", check=0, env=env).stderr
    text = (home / ".ssh" / "config").read_text()
    assert text.startswith("Include ") and text.count("Include") == 1 and text.endswith("Host other\n    User x\n")
    done = cloud.run(["ssh", "-F", str(home / ".ssh" / "config"), "virga.cmd", "echo through"], env=env)
    assert done.stdout == b"through\n", done.stderr


def test_what_cannot_be_is_said_in_a_sentence(cloud, ssh):
    done = cloud.virga("ssh", "-P", "nowhere", "new", "true")
    assert done.returncode == 255 and b"there is no pool 'nowhere'" in done.stderr
    done = ssh.run("nobody@virga.cmd", "true")
    assert done.returncode == 255 and b"in this session you are 'root', not 'nobody'" in done.stderr
    assert b"which session?" in cloud.virga("ssh").stderr
    assert b"has no --detach" in cloud.virga("ssh", "-d", "x").stderr


def test_without_a_server_there_it_says_what_to_install(cloud):
    """The script itself, on a root that has no OpenSSH."""
    script = cloud.virga("ssh-proxy", "--script", check=0).stdout.decode()
    root = cloud.work / "bare"
    (root / "bin").mkdir(parents=True)
    for tool in ("id", "sh"):
        os.symlink(shutil.which(tool), root / "bin" / tool)
    script = script.replace(":/usr/sbin:/sbin:/usr/local/sbin", "")
    done = cloud.run(["/bin/sh", "-c", script, "virga-ssh", "key", ""], env={"PATH": str(root / "bin"), "VIRGA_SSH_NODE": "/none"})
    assert done.returncode == 125 and b"has an OpenSSH server: install it in one of them" in done.stderr, done.stderr


@pytest.mark.skipif(not shutil.which("useradd") or not shutil.which("setpriv"), reason="useradd and setpriv are needed")
def test_without_privileges(cloud):
    cloud.home.chmod(0o711)
    person = Person(GROUP + "s", [GROUP])
    try:
        config = f"{person.home}/cfg"
        text = person.run(cloud, "virga", "ssh-config", check=0).stdout
        assert f"{person.home}/.virga/ssh/known_hosts".encode() in text
        with open(config, "wb") as f:
            f.write(text)
        done = person.run(cloud, "ssh", "-F", config, "virga.mine", "id -un; echo x > ~/made; exit 4")
        assert (done.stdout.decode(), done.returncode) == (person.name + "\n", 4), done.stderr
        assert os.stat(f"{person.home}/made").st_uid == person.uid
        done = person.run(cloud, "ssh", "-F", config, "-tt", "virga.mine", "tty")
        assert b"/dev/pts/" in done.stdout, done.stderr
        done = person.run(cloud, "sftp", "-q", "-F", config, "-b", "-", "virga.mine", input=b"ls made\n")
        assert b"made" in done.stdout, done.stderr
    finally:
        person.remove()


def test_from_another_machine_with_its_files(far):
    laptop = far.laptop
    (laptop.work / "note").write_text("written here\n")
    ssh = Ssh(laptop)
    ssh.config = f"{laptop.inner}/ssh_config"
    assert ssh.out("virga.far", f"cat {laptop.inner}/note; echo from there > {laptop.inner}/back") == "written here\n"
    assert ssh.run("virga.far", "exit 6").returncode == 6
    wait_for("what was written there", lambda: (laptop.work / "back").exists()
             and (laptop.work / "back").read_text() == "from there\n")


def test_where_the_machine_has_no_server_the_nodes_is_taken(far):
    laptop = far.laptop
    for gone in ("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/lib/openssh/sftp-server"):
        laptop.out("mv", gone, gone + ".away")
    try:
        ssh = Ssh(laptop)
    except AssertionError:  # the client's own key is made by ssh-keygen
        laptop.out("mv", "/usr/bin/ssh-keygen.away", "/usr/bin/ssh-keygen")
        ssh = Ssh(laptop)
        laptop.out("mv", "/usr/bin/ssh-keygen", "/usr/bin/ssh-keygen.away")
    ssh.config = f"{laptop.inner}/ssh_config"
    try:
        done = ssh.run("virga.lent", "PATH=$PATH:/usr/sbin; command -v sshd; exit 8")
        assert (done.stdout, done.returncode) == (b"", 8), done.stderr
        assert "sshd" in ssh.out("virga.lent", "ls /run/virga/s/ssh").split()
        assert ssh.out("-tt", "virga.lent", "tty").startswith("/dev/pts/")
        (laptop.work / "sent").write_text("there and back\n")
        done = ssh.run("-q", "-b", "-", "virga.lent", program="sftp",
                       input=f"put {laptop.inner}/sent /tmp/sent\nget /tmp/sent {laptop.inner}/got\n".encode(), check=0)
        assert (laptop.work / "got").read_text() == "there and back\n"
    finally:
        for gone in ("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/lib/openssh/sftp-server"):
            laptop.out("sh", "-c", f"[ ! -e {gone}.away ] || mv {gone}.away {gone}")


def plain_image(folder):
    """A shell and a few tools, and no OpenSSH: what most images have."""
    tools = ["/bin/sh", "/usr/bin/id", "/bin/cat", "/bin/mkdir", "/bin/ln", "/bin/rm", "/bin/grep", "/bin/ls", "/usr/bin/tty"]
    files = {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "etc/nsswitch.conf": b"passwd: files\n", "root": None, "tmp": None,
             "etc/mark": b"of the image\n"}
    for tool in tools:
        listed = subprocess.run(["ldd", tool], stdout=subprocess.PIPE, check=True).stdout.decode().split()
        for path in [tool, *(w for w in listed if w.startswith("/"))]:
            with open(path, "rb") as f:
                files[path[1:]] = (f.read(), 0o755)
    oci.Image([oci.layer(files)], config={"Env": ["PATH=/usr/bin:/bin"]}).write_layout(folder)
    return folder


def test_into_an_image_that_has_no_server(cloud):
    image = plain_image(str(cloud.work / "image"))
    run = lambda *argv, **kw: cloud.virga("ssh", "--image", image, "-C", "/", "boxed", *argv, **kw)  # noqa: E731
    done = run("--", "cat /etc/mark; command -v sshd; exit 5")
    assert (done.stdout, done.returncode) == (b"of the image\n", 5), done.stderr
    done = Ssh(cloud).run("-tt", "virga.boxed", "tty")
    assert done.stdout.startswith(b"/dev/pts/"), done.stderr
    # Made again by ssh alone it is the same.
    cloud.virga("session", "end", "boxed", check=0)
    wait_for("the session to end", lambda: not any(x["name"] == "boxed" for x in cloud.json("session", "list")))
    assert Ssh(cloud).out("virga.boxed", "cat /etc/mark") == "of the image\n"
    cloud.virga("session", "end", "boxed", check=0)
    cloud.virga("mirror", "stop", check=0)
