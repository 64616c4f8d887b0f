"""A second machine joins over TLS (here: a second home on the same machine, by loopback): tokens that work once,
certificates that live a few seconds and are renewed, and nodes that are removed and stay away."""
import subprocess
import time

import pytest
from virga import WAIT_S, Cloud, noted, wait_for

LIFE_S = 6
CONFIG = f"""
lease: 15s
heartbeat: 300ms
node_certificate: {LIFE_S}s
pools:
  - name: default
  - name: far
    nodes: {{labels: {{where: far}}}}
    shared: [/var/tmp]
default_pool: default
"""


class Node(Cloud):
    """The second machine's home; its agent only."""

    def __init__(self):
        super().__init__()
        self.agent = None
        self.out_file = self.home / "agent.out"

    def start(self, *args):
        with open(self.out_file, "ab") as log:
            self.agent = self.popen(["virga", "agent", "--name", "far", "--shared", "/var/tmp", *args],
                                    stdout=log, stderr=log)

    def stop(self):
        if self.agent:
            self.agent.terminate()
            try:
                self.agent.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
            self.agent = None

    def said(self):
        log = self.home / "log" / "agent.log"
        return self.out_file.read_text(errors="replace") + (log.read_text(errors="replace") if log.exists() else "")

    def certificate(self):
        path = self.home / "node" / "node.crt"
        return path.read_bytes() if path.exists() else None


@pytest.fixture
def node():
    node = Node()
    yield node
    node.stop()
    node.kill_leftovers()
    node.remove()


def address(cloud):
    return (cloud.home / "control" / "address").read_text().strip()


def invite(cloud):
    words = cloud.out("virga", "node", "invite", "--label", "where=far").split()
    return next(w.split("@")[0] for w in words if w.startswith("vgj_"))


def state(cloud, name="far"):
    return next((n["state"] for n in cloud.json("node", "list") if n["name"] == name), None)


def join(cloud, node, token=None):
    node.start("--join", address(cloud), "--token", token or invite(cloud))
    wait_for("the node to be ready", lambda: state(cloud) == "ready")


def test_certificates_are_renewed_while_tasks_run(cloud, node):
    before = len(noted(cloud, "node far joined"))
    join(cloud, node)
    assert len(noted(cloud, "node far joined")) == before + 1
    task = cloud.out("vrun", "-d", "--pool", "far", "sh", "-c", "while :; do sleep 0.2; done")
    seen = {node.certificate()}
    end = time.monotonic() + 10 * LIFE_S
    while len(seen) < 4 and time.monotonic() < end:  # the first and three renewals: past its own life
        seen.add(node.certificate())
        time.sleep(0.05)
    assert len(seen) >= 4, node.said()
    assert len(noted(cloud, "node far: certificate renewed")) >= 3
    assert cloud.task(task)["state"] == "running"
    assert cloud.task(task)["attempt"] == 1
    assert cloud.vrun("--pool", "far", "echo", "still here", check=0).stdout == b"still here\n"
    cloud.virga("task", "cancel", task, check=0)
    cloud.virga("task", "wait", task)
    node.stop()
    cloud.virga("node", "remove", "far")


def test_an_expired_certificate_is_refused(cloud, node):
    join(cloud, node)
    node.stop()
    time.sleep(LIFE_S + 1)  # a certificate's life has no event to wait for
    node.start()
    assert node.agent.wait(timeout=WAIT_S) != 0
    assert "certificate has expired" in node.said()
    assert "virga node invite" in node.said()
    assert state(cloud) != "ready"
    cloud.virga("node", "remove", "far")


def test_a_removed_node_does_not_come_back_with_its_certificate(make_cloud, node):
    cloud = make_cloud(CONFIG.replace(f"node_certificate: {LIFE_S}s", "node_certificate: 1h"))  # it is good all the time
    cloud.up()
    join(cloud, node)
    node.stop()
    cloud.virga("node", "remove", "far", check=0)
    node.start()
    wait_for("the refusal", lambda: "was removed from the cloud" in node.said())
    assert state(cloud) is None


def test_a_join_token_works_once(cloud, node):
    token = invite(cloud)
    join(cloud, node, token)
    second = Node()
    try:
        second.start("--join", address(cloud), "--token", token)
        wait_for("the refusal", lambda: "join token is not valid" in second.said())
        assert second.certificate() is None
    finally:
        second.stop()
        second.kill_leftovers()
        second.remove()
    node.stop()
    cloud.virga("node", "remove", "far")
