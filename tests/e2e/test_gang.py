"""Gangs over two hosts, each in a network namespace of its own: all or nothing, a meeting point that works, and what
a lost member means."""
import os
import re
import shutil

import pytest
from test_hosts import Network, alive, ready_nodes
from virga import ROOT, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                                reason="ip and nsenter are needed (tools/bootstrap test)")

# Two slots on each of the two nodes, whatever this machine has.
CONFIG_TEXT = """
listen: 10.77.0.1:7700
lease: 20s
heartbeat: 500ms
pools:
  - name: default
    shared: [/var/tmp]
    shape: {cpus: %s, mem: 64M}
  - name: metal
    class: bare-metal
    shared: [/var/tmp]
default_pool: default
scheduler: {backfill: 0}
"""


@pytest.fixture(scope="module")
def net():
    half = max(1, os.cpu_count() // 2)
    network = Network()
    try:
        network.control = network.add("ctl", "10.77.0.1", CONFIG_TEXT % half)
        network.nodes = [network.add("node1", "10.77.0.11"), network.add("node2", "10.77.0.12")]
        network.client = network.add("cli", "10.77.0.21")
        done = network.control.virga("up", "--no-agent")
        assert done.returncode == 0, done.stderr.decode() + network.control.logs()
        for node in network.nodes:
            node.join(network.control, network.control.out("virga", "node", "invite"))
        wait_for("both nodes to be ready", lambda: ready_nodes(network) == 2 or not alive(network))
        token = network.control.out("virga", "token", "create")
        done = network.client.virga("login", "10.77.0.1:7700", "--token", token)
        assert done.returncode == 0, done.stderr
        yield network
        network.control.virga("down")
    finally:
        network.close()


@pytest.fixture(autouse=True)
def empty(net):
    """Every test finds and leaves all slots free."""
    yield
    net.client.virga("task", "cancel", "--all")
    wait_for("everything to end", lambda: not net.client.json("task", "list"))


def slots(net):
    return next(p for p in net.control.json("pool", "list") if p["name"] == "default")["total_slots"]


def members(cloud, group):
    return sorted(cloud.json("task", "list", "-a", "--of", group), key=lambda t: t["index"])


def gang(net, n, *argv):
    return net.client.out("vbatch", "--gang", "-N", str(n), *argv)


def test_members_find_each_other_over_two_hosts(net):
    client = net.client
    script = (ROOT / "examples" / "gang.py").read_text()
    (client.work / "gang.py").write_text(script)
    n = slots(net)
    done = client.run(["vbatch", "-f", "--gang", "-N", str(n), "python3", "gang.py"], timeout=120)
    total = sum((r + 1) ** 2 for r in range(n))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == \
        sorted(f"[{r}] rank {r} of {n}: the sum is {total}" for r in range(n))
    group = client.json("task", "list", "-a", "--limit", "1")[0]
    used = {t["node"] for t in members(client, group["id"])}
    assert used == {"node1", "node2"}, used


def test_a_gang_that_does_not_fit_starts_not_at_all(net):
    client = net.client
    n = slots(net)
    holder = client.out("vbatch", "sleep", "600")
    client.wait_state(holder, "running")
    group = gang(net, n, "sh", "-c", "echo $RANK >> started; sleep 600")
    small = client.out("vbatch", "-N", str(n - 1), "true")  # others do run meanwhile
    client.wait_state(small, "succeeded")
    assert not (client.work / "started").exists()
    assert client.task(group)["progress"]["running"] == 0
    client.virga("task", "cancel", holder, check=0)
    wait_for("the whole gang to run", lambda: client.task(group)["progress"]["running"] == n)
    wait_for("all to write", lambda: (client.work / "started").exists() and len((client.work / "started").read_text().split()) == n)
    client.virga("task", "cancel", group, check=0)
    client.wait_state(group, "cancelled")


def kill_member(net, group, rank):
    task = members(net.client, group)[rank]
    net.client.virga("task", "signal", task["id"], "KILL", check=0)


def begin(net, policy, name):
    """A gang whose members write one line at each start and wait for a file."""
    client = net.client
    n = slots(net)
    group = gang(net, n, "--gang-policy", policy, "sh", "-c",
                 f"echo start >> {name}.$RANK; while [ ! -e {name}.go ]; do sleep 0.05; done")
    wait_for("the whole gang to run", lambda: client.task(group)["progress"]["running"] == n)
    starts = lambda: [len((client.work / f"{name}.{r}").read_text().split())
                      if (client.work / f"{name}.{r}").exists() else 0 for r in range(n)]
    wait_for("all to write", lambda: starts() == [1] * n)
    return group, n, starts


def test_heal_starts_the_lost_member_again(net):
    group, n, starts = begin(net, "heal", "heal")
    kill_member(net, group, 1)
    wait_for("member 1 to start again", lambda: starts() == [1, 2] + [1] * (n - 2))
    (net.client.work / "heal.go").touch()
    assert net.client.virga("task", "wait", group).returncode == 0


def test_restart_starts_the_whole_gang_again(net):
    group, n, starts = begin(net, "restart", "restart")
    kill_member(net, group, 1)
    wait_for("everybody to start again", lambda: starts() == [2] * n)
    (net.client.work / "restart.go").touch()
    assert net.client.virga("task", "wait", group).returncode == 0


def test_fail_ends_the_gang(net):
    group, n, starts = begin(net, "fail", "fail")
    kill_member(net, group, 1)
    info = net.client.wait_state(group, "failed")
    assert starts() == [1] * n
    assert info["progress"]["running"] == 0 and info["progress"]["queued"] == 0
    assert re.match(r"^(failed|cancelled)$", members(net.client, group)[0]["state"])


def test_whole_nodes(net):
    """Pools of class bare-metal: a node for each member, nobody beside them, and both are wiped."""
    client = net.client
    (client.work / "gang.py").write_text((ROOT / "examples" / "gang.py").read_text())
    holder = client.out("vbatch", "sleep", "600")
    client.wait_state(holder, "running")
    group = gang(net, 2, "-P", "metal", "sh", "-c", "python3 gang.py && while [ ! -e metal.go ]; do sleep 0.05; done")
    assert "whole node" in client.json("task", "why", group)["text"]
    client.virga("task", "cancel", holder, check=0)
    wait_for("both to run", lambda: client.task(group)["progress"]["running"] == 2)
    small = client.out("vbatch", "true")
    assert {t["node"] for t in members(client, group)} == {"node1", "node2"}
    assert client.task(small)["state"] == "queued"
    (client.work / "metal.go").touch()
    assert client.virga("task", "wait", group).returncode == 0
    assert all("GPUs: none" in client.task(t["id"])["wiped"] for t in members(client, group))
    client.wait_state(small, "succeeded")
