"""What a node has of files before the client's uplink is asked: the public store that its operator seeded, and what
the same user's daemon on another node has read. A laptop, a control plane and two nodes; another user to compare."""
import os
import shutil

import pytest
from hosts import Laptop, far_world, login, only, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]

BIG = 6 << 20  # several leaves, the last one short
READ = "import hashlib; print(hashlib.sha256(open('/opt/only-here/big', 'rb').read()).hexdigest())"


@pytest.fixture(scope="module")
def far():
    network = far_world(nodes=2)
    yield network
    network.control.virga("down")
    network.close()


def ran(done, status=0):
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout.decode()


def daemons(node):
    return {d["slot"]: d for d in node.json("node", "cache")}


def daemon(node):
    """The one daemon that runs there."""
    running = [d for d in daemons(node).values() if d["running"]]
    assert len(running) == 1, running
    return running[0]


def test_what_one_node_has_read_comes_from_there(far):
    laptop, (first, second) = far.laptop, far.nodes
    content = os.urandom(BIG + 12345)
    laptop.path("/opt/only-here/big").write_bytes(content)
    only(far, first)
    right = ran(laptop.plain("python3", "-c", READ))
    for _ in range(3):  # once it has been read whole its id is known, and told with its folder
        assert ran(laptop.vrun("python3", "-c", READ)) == right
    assert daemon(first)["peers"]["links"] == 0, "there is no other node yet"
    only(far, second)
    for _ in range(3):
        assert ran(laptop.vrun("python3", "-c", READ)) == right
    wait_for("the nodes to be joined and asked", lambda: daemon(second)["peers"]["asked"] > 0)
    wait_for("the first to have answered", lambda: daemon(first)["peers"]["served_bytes"] > 0)
    assert daemon(second)["cache"]["bad"] == 0
    assert ran(laptop.vrun("python3", "-c", READ)) == right


def test_a_public_file_need_not_be_sent(far):
    laptop, (first, second) = far.laptop, far.nodes
    only(far, first)
    script = "import sys, json, email.parser; print(len(sys.modules) > 10)"
    for _ in range(2):
        assert ran(laptop.vrun("python3", "-c", script)) == "True\n"
    library = ran(laptop.plain("python3", "-c", "import json; print(json.__path__[0])")).strip()
    seeded = ran(second.virga("node", "seed", library, f"{os.path.dirname(library)}/email"))
    assert " new, " in seeded
    before = daemons(second)
    only(far, second)
    assert ran(laptop.vrun("python3", "-c", script)) == "True\n"
    slot = daemon(second)["slot"]
    before = before.get(slot, {}).get("cache", {}).get("public_hits", 0)
    assert daemon(second)["cache"]["public_hits"] > before
    assert "0 were damaged" in ran(second.virga("node", "seed", "--check"))


def test_another_user_is_served_by_nobody_elses_cache(far):
    """Two users, one node, the same file: each daemon has fetched it for itself."""
    laptop, (first, _) = far.laptop, far.nodes
    only(far, first)
    right = ran(laptop.vrun("python3", "-c", READ))
    mine = daemon(first)["slot"]
    ran(far.control.virga("user", "add", "eve"))
    other = far.add("other", "10.77.0.22", kind=Laptop)
    other.path("/opt/only-here/big").write_bytes(laptop.path("/opt/only-here/big").read_bytes())
    login(far, other, "--user", "eve")
    assert ran(other.vrun("python3", "-c", READ)) == right
    both = {s: d for s, d in daemons(first).items() if d["running"]}
    assert len(both) == 2 and mine in both, both.keys()
    (hers,) = (d for s, d in both.items() if s != mine)
    assert hers["cache"]["misses"] > 0 and hers["cache"]["bytes"] > BIG, "it was sent again"
    assert hers["peers"] == {"links": 0, "asked": 0, "files": 0, "bytes": 0, "served_bytes": 0}
    names = [{f for _, _, files in os.walk(first.home / "node" / "fs" / str(s) / "cache" / "id") for f in files}
             for s in both]
    assert names[0] and names[1] and not names[0] & names[1], "no name of one says anything of the other"
