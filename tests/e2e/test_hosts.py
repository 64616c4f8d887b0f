"""Several hosts: a control plane, two nodes and a client, each in a network namespace and with a home of its
own, joined by a bridge in a fifth. Processes keep the machine's other namespaces, so what is proven here is the
network: joining, TLS, direct and relayed streams, a link that breaks and heals, a node that dies."""
import os
import shutil
import signal
import subprocess
import time

import pytest
from hosts import Network, alive, ready_nodes, sh
from virga import WAIT_S, processes_of, wait_for

CONFIG_TEXT = """
listen: 10.77.0.1:7700
lease: 6s
heartbeat: 500ms
pools:
  - name: default
    shared: [/var/tmp]
default_pool: default
"""

pytestmark = pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                                reason="ip and nsenter are needed (tools/bootstrap test)")


@pytest.fixture(scope="module")
def net():
    network = Network()
    try:
        network.control = network.add("ctl", "10.77.0.1", CONFIG_TEXT)
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


@pytest.fixture
def both_ready(net):
    """Every test starts with two ready nodes and all links up."""
    for host in net.hosts:
        host.heal()
    for node in net.nodes:
        if node.agent.poll() is not None:
            node.restart_agent()
    wait_for("both nodes to be ready", lambda: ready_nodes(net) == 2)
    return net


def test_a_remote_client_runs_on_a_node(both_ready):
    client = both_ready.client
    done = client.vrun("sh", "-c", "echo out; echo err >&2; cat; exit 9", input=b"input")
    assert (done.returncode, done.stdout, done.stderr) == (9, b"out\ninput", b"err\n")


def test_both_nodes_are_used(both_ready):
    client = both_ready.client
    tasks = [client.out("vrun", "-d", "--cpus", "1", "sleep", "60") for _ in range(4)]
    for task in tasks:
        client.wait_state(task, "running")
    used = {client.task(task)["node"] for task in tasks}
    client.virga("task", "cancel", *tasks)
    for task in tasks:
        client.wait_state(task, "cancelled")
    assert used == {"node1", "node2"}


def test_an_invitation_is_good_for_one_node_only(both_ready):
    control = both_ready.control
    third = both_ready.add("node3", "10.77.0.13")
    token = control.out("virga", "node", "invite")
    third.join(control, token)
    wait_for("the third node", lambda: ready_nodes(both_ready) == 3)
    fourth = both_ready.add("node4", "10.77.0.14")
    fourth.join(control, token)
    assert fourth.agent.wait(timeout=WAIT_S) != 0
    assert "invit" in (fourth.home / "agent.out").read_text() or "token" in (fourth.home / "agent.out").read_text()
    third.stop_agent()
    wait_for("it to be gone", lambda: ready_nodes(both_ready) == 2)
    node = next(n for n in control.json("node", "list") if n["name"] == "node3")
    control.virga("node", "remove", node["id"])


def carry(net, megabytes=24):
    """Moves bytes through a task; returns how many went over the control plane's link meanwhile."""
    before = net.control.traffic()
    size = megabytes << 20
    done = net.client.sh(f"head -c {size} /dev/zero | vrun cat | wc -c")
    assert done.stdout.strip() == str(size).encode(), done.stderr
    return net.control.traffic() - before


def test_streams_are_direct_when_the_client_can_reach_the_node(both_ready):
    # Some megabytes are relayed until the direct way is made; all of it would be four times 96.
    assert carry(both_ready, 96) < 96 << 20


def test_streams_are_relayed_when_it_cannot(both_ready):
    client = both_ready.client
    for node in both_ready.nodes:
        client.ip("route", "add", "unreachable", f"{node.address}/32")
    try:
        assert carry(both_ready) > 80 << 20
    finally:
        for node in both_ready.nodes:
            client.ip("route", "del", f"{node.address}/32")


def test_streams_are_relayed_when_packets_to_the_node_vanish(both_ready):
    client = both_ready.client
    for node in both_ready.nodes:
        client.ip("route", "add", "blackhole", f"{node.address}/32")
    try:
        assert carry(both_ready, 2) > 2 << 20
    finally:
        for node in both_ready.nodes:
            client.ip("route", "del", f"{node.address}/32")


COUNTER = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 21"
COUNTED = b"".join(b"line %d\n" % i for i in range(1, 201))


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
def test_a_cut_and_healed_link_loses_nothing(both_ready, relayed):
    client = both_ready.client
    if relayed:
        for node in both_ready.nodes:
            client.ip("route", "add", "unreachable", f"{node.address}/32")
    try:
        p = client.popen(["vrun", "sh", "-c", COUNTER])
        first = b"".join(p.stdout.readline() for _ in range(20))
        client.cut()
        time.sleep(2)  # so long the cable is out
        client.heal()
        if relayed:
            for node in both_ready.nodes:
                client.ip("route", "replace", "unreachable", f"{node.address}/32")
        rest, err = p.communicate(timeout=3 * WAIT_S)
        assert first + rest == COUNTED, err
        assert p.returncode == 21
    finally:
        if relayed:
            for node in both_ready.nodes:
                sh("ip", "-n", client.netns, "route", "del", f"{node.address}/32", check=False)


@pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed (tools/bootstrap test)")
def test_a_connection_that_is_reset_is_made_again(both_ready):
    """Every packet of the client is answered by a reset for a while: its connections die for good."""
    client = both_ready.client
    p = client.popen(["vrun", "sh", "-c", f"head -c 5; {COUNTER}"], stdin=subprocess.PIPE)
    p.stdin.write(b"hello")
    p.stdin.flush()
    assert p.stdout.read(5) == b"hello"
    first = b"".join(p.stdout.readline() for _ in range(20))
    rules = ("add table inet t; add chain inet t out { type filter hook output priority 0; };"
             " add rule inet t out meta l4proto tcp reject with tcp reset;")
    sh(*client.inside(["nft", rules]))
    time.sleep(1)  # long enough for each to try
    sh(*client.inside(["nft", "delete table inet t"]))
    rest, err = p.communicate(timeout=3 * WAIT_S)
    assert first + rest == COUNTED, err
    assert p.returncode == 21


def test_a_nodes_link_may_break_for_less_than_its_lease(both_ready):
    client = both_ready.client
    task = client.out("vrun", "-d", "sh", "-c", COUNTER)
    name = client.wait_state(task, "running")["node"]
    node = next(n for n in both_ready.nodes if n.name == name)
    node.cut()
    time.sleep(1)  # less than the lease
    node.heal()
    assert client.virga("task", "wait", task).returncode == 21
    assert client.task(task)["attempt"] == 1
    assert client.virga("task", "logs", task).stdout == COUNTED


TICKER = "me=$(cat /proc/sys/kernel/random/uuid); echo start $me >> ticks; while ! test -e enough; do echo tick $me >> ticks; sleep 0.05; done"


def test_a_dead_nodes_batch_task_runs_elsewhere_and_never_twice_at_once(both_ready):
    """The link of the node is cut for good: its task must have ended there before it starts elsewhere."""
    client = both_ready.client
    for leftover in ("ticks", "enough"):
        (client.work / leftover).unlink(missing_ok=True)
    task = client.out("vbatch", "sh", "-c", TICKER)
    name = client.wait_state(task, "running")["node"]
    node = next(n for n in both_ready.nodes if n.name == name)
    node.cut()

    def second_start():
        ticks = client.work / "ticks"
        return ticks.exists() and ticks.read_text().count("start") == 2

    wait_for("the second start", second_start, 2 * WAIT_S)
    time.sleep(0.5)  # were the first still alive, it would tick now
    (client.work / "enough").touch()
    assert client.virga("task", "wait", task).returncode == 0
    info = client.task(task)
    assert info["attempt"] == 2 and info["node"] != name
    lines = (client.work / "ticks").read_text().splitlines()
    second = max(i for i, line in enumerate(lines) if line.startswith("start"))
    first_id = lines[0].split()[1]
    assert not any(first_id in line for line in lines[second:]), "both attempts ran at once"
    node.heal()
    wait_for("the node to come back", lambda: ready_nodes(both_ready) == 2)


def test_a_node_whose_processes_all_died_is_replaced(both_ready):
    client = both_ready.client
    (client.work / "ticks2").unlink(missing_ok=True)
    task = client.out("vbatch", "sh", "-c", "echo $$ >> ticks2; test $(wc -l < ticks2) -ge 2 || sleep 300; exit 31")
    name = client.wait_state(task, "running")["node"]
    node = next(n for n in both_ready.nodes if n.name == name)
    for pid, _ in processes_of(node.home):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert client.virga("task", "wait", task, timeout=90).returncode == 31
    assert client.task(task)["attempt"] == 2
    node.restart_agent()


def test_the_control_plane_may_be_away_for_a_while(both_ready):
    """virgad is killed and started again while a remote vrun is running."""
    client, control = both_ready.client, both_ready.control
    p = client.popen(["vrun", "sh", "-c", COUNTER])
    first = b"".join(p.stdout.readline() for _ in range(10))
    os.kill(control.pid("virgad"), signal.SIGKILL)
    rest, err = p.communicate(timeout=3 * WAIT_S)
    assert first + rest == COUNTED, err
    assert p.returncode == 21


def test_a_terminal_on_another_host(both_ready):
    from virga import Terminal
    client = both_ready.client
    with Terminal(client.inside(["vrun", "sh", "-c", "stty size; read -r x; echo got=$x"]), client.env, client.work,
                  rows=33, cols=99) as t:
        t.expect("33 99")
        t.send("typed\r")
        t.expect("got=typed")
        assert t.wait() == 0


def test_attach_and_logs_from_another_host(both_ready):
    client = both_ready.client
    task = client.out("vrun", "-d", "sh", "-c", "echo kept; exit 2")
    assert client.virga("task", "wait", task).returncode == 2
    assert client.virga("task", "logs", task).stdout == b"kept\n"
    assert client.virga("attach", task).stdout == b"kept\n"
