"""Several people on one machine: who is let in, as whom their tasks run, and what they cannot do to one another.
Real accounts, made for this module and removed after it."""
import os
import shutil
import subprocess

import pytest
from virga import BIN, Cloud, programs_for_all, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users"),
    pytest.mark.skipif(not shutil.which("useradd") or not shutil.which("setpriv"),
                       reason="useradd and setpriv are needed"),
]
GROUP = f"vgt{os.getpid() % 100000}"
CONFIG = f"""
access:
  groups: [{GROUP}]
"""


class Person:
    """An account of this machine and a shell as it."""

    def __init__(self, name, groups=()):
        self.name = name
        extra = ["-G", ",".join(groups)] if groups else []
        subprocess.run(["useradd", "-m", "-d", f"/home/{name}", "-s", "/bin/sh", *extra, name], check=True)
        os.chmod(f"/home/{name}", 0o700)
        self.home = f"/home/{name}"
        self.uid = os.stat(self.home).st_uid
        self.gid = os.stat(self.home).st_gid

    def run(self, cloud, *argv, home=True, **kw):
        env = {k: v for k, v in cloud.env.items() if k not in ("HOME", "USER", "LOGNAME")}
        env.update({"HOME": self.home, "USER": self.name, "LOGNAME": self.name,
                    "PATH": f"{programs_for_all()}:{env['PATH']}"})
        if not home:
            del env["VIRGA_HOME"]
        return cloud.run(["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", "--", *argv],
                         cwd=self.home if home else "/", env=env, **kw)

    def remove(self):
        subprocess.run(["userdel", "-r", self.name], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def people():
    subprocess.run(["groupadd", GROUP], check=True)
    made = []
    try:
        for name, groups in (("a", [GROUP]), ("b", [GROUP]), ("x", [])):
            made.append(Person(GROUP + name, groups))
        yield made
    finally:
        for person in made:
            person.remove()
        subprocess.run(["groupdel", GROUP], check=False)


@pytest.fixture(scope="module")
def ann(cloud, people):
    os.chmod(cloud.home, 0o711)  # as virgad makes it; the harness's own is closed
    return people[0]


@pytest.fixture(scope="module")
def bob(ann, people):
    return people[1]


@pytest.fixture(scope="module")
def stranger(ann, people):
    return people[2]


def refused(done, *words):
    text = done.stderr.decode(errors="replace")
    assert done.returncode != 0, done.stdout
    for word in words:
        assert word in text, text


def test_a_stranger_is_refused_with_the_remedy(cloud, stranger):
    done = stranger.run(cloud, "vrun", "true")
    assert done.returncode == 125
    refused(done, "may not use this cloud", f"virga user add {stranger.name} --uid {stranger.uid}", "access.groups")


def test_a_group_lets_in_and_the_task_is_its_caller(cloud, ann):
    done = ann.run(cloud, "vrun", "sh", "-c", "id -u; id -g; pwd; echo mine > made; cat made", check=0)
    assert done.stdout.decode().split("\n") == [str(ann.uid), str(ann.gid), ann.home, "mine", ""]
    made = os.stat(f"{ann.home}/made")
    assert (made.st_uid, made.st_gid) == (ann.uid, ann.gid)


def test_another_users_home_stays_closed(cloud, ann, bob):
    ann.run(cloud, "sh", "-c", "echo secret > private", check=0)
    refused(bob.run(cloud, "vrun", "cat", f"{ann.home}/private"))
    assert bob.run(cloud, "vrun", "sh", "-c", f"cat {ann.home}/private || true", check=0).stdout == b""


def test_a_uid_lets_in_until_the_user_is_removed(cloud, stranger):
    cloud.virga("user", "add", "guest", "--uid", str(stranger.uid), check=0)
    assert stranger.run(cloud, "vrun", "id", "-u", check=0).stdout == b"%d\n" % stranger.uid
    cloud.virga("user", "rm", "guest", check=0)
    refused(stranger.run(cloud, "vrun", "true"), "may not use this cloud")


def test_a_token_lets_in_until_it_is_revoked(cloud, stranger):
    cloud.virga("user", "add", "holder", check=0)
    token = next(w for w in cloud.out("virga", "token", "create", "--user", "holder").split() if w.startswith("vgt_"))
    address = (cloud.home / "control" / "address").read_text().strip()
    stranger.run(cloud, "virga", "login", address, "--token", token, home=False, check=0)
    done = stranger.run(cloud, "vrun", "echo", "in", home=False, check=0)
    assert done.stdout == b"in\n"
    cloud.virga("user", "rm", "holder", check=0)
    refused(stranger.run(cloud, "vrun", "true", home=False), "token")


def test_others_tasks_cannot_be_touched(cloud, ann, bob):
    task = ann.run(cloud, "vrun", "-d", "sleep", "1000", check=0).stdout.decode().strip()
    wait_for("the task to run", lambda: cloud.task(task)["state"] == "running")
    for argv in (["task", "get", task], ["task", "logs", task], ["task", "wait", task], ["task", "cancel", task],
                 ["task", "signal", task, "KILL"], ["attach", task]):
        done = bob.run(cloud, "virga", *argv, timeout=30)
        refused(done, "that you may see")
    bob.run(cloud, "virga", "task", "cancel", "--all")
    assert task not in bob.run(cloud, "virga", "task", "list", "--all-users").stdout.decode()
    assert cloud.task(task)["state"] == "running"
    ann.run(cloud, "virga", "task", "cancel", task, check=0)


ADMIN_ACTS = [
    ["user", "add", "mallory"],
    ["user", "rm", "root"],
    ["token", "create", "--user", "root"],
    ["node", "invite"],
    ["node", "drain", "x"],
    ["node", "remove", "x"],
    ["team", "add", "evil"],
]


@pytest.mark.parametrize("argv", ADMIN_ACTS, ids=lambda a: " ".join(a[:2]))
def test_a_member_may_not_administer(cloud, ann, argv):
    done = ann.run(cloud, "virga", *argv)
    refused(done, " may ", "administrator")
    assert cloud.virga("status").returncode == 0


@pytest.mark.parametrize("argv", ADMIN_ACTS, ids=lambda a: " ".join(a[:2]))
def test_a_program_inside_an_administrators_task_may_not_administer(cloud, argv):
    shutil.copy(BIN / "virga", cloud.work / "virga")
    done = cloud.vrun("./virga", *argv)
    refused(done, "inside a task")


def test_a_program_inside_a_task_opens_no_session_that_outlives_it(cloud):
    shutil.copy(BIN / "virga", cloud.work / "virga")
    refused(cloud.vrun("./virga", "dashboard", "--print"), "inside a task")


def test_a_cloud_below_a_closed_folder_is_reached_by_its_system_socket(ann):
    if os.path.exists("/run/virga/sock"):
        pytest.skip("another cloud has /run/virga/sock")
    cloud = Cloud(CONFIG)
    outer = cloud.home
    inner = outer / "closed" / "home"
    inner.mkdir(parents=True)
    os.chmod(outer / "closed", 0o700)
    shutil.copy(outer / "config.yaml", inner / "config.yaml")
    cloud.home = inner
    cloud.env["VIRGA_HOME"] = str(inner)
    try:
        cloud.up()
        plain = {k: v for k, v in cloud.env.items() if k != "VIRGA_HOME"}
        admin_env, cloud.env = cloud.env, plain
        done = ann.run(cloud, "vrun", "id", "-u")
        cloud.env = admin_env
        assert done.stdout == b"%d\n" % ann.uid, done.stderr
    finally:
        cloud.down()
        cloud.kill_leftovers()
        cloud.home = outer
        cloud.remove()
