"""The end of a node whose tasks have another machine's files: whatever they wait for, they can be ended, and no process,
mount or socket stays behind."""
import os
import shutil
import subprocess

import pytest
from hosts import FAR_CONFIG, Laptop, Network, login
from virga import pids, read_bytes, wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]


def daemons(home):
    lines = [read_bytes(f"/proc/{p}/cmdline") for p in pids()]
    return [line for line in lines if b"\0fsd\0" in line and str(home).encode() in line]


def test_a_task_that_waits_for_bytes_can_be_cancelled_and_nothing_is_left():
    network = Network()
    try:
        control = network.control = network.add("ctl", "10.77.0.1", FAR_CONFIG)
        laptop = network.add("laptop", "10.77.0.21", kind=Laptop)
        assert control.virga("up").returncode == 0
        login(network, laptop)
        laptop.path("/opt/only-here/big").write_bytes(os.urandom(1 << 20) * 200)
        p = laptop.popen(["vrun", "sh", "-c", "echo up; until test -e go; do sleep 0.1; done"], stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"up\n"
        q = laptop.popen(["vrun", "sh", "-c", "echo up; exec cat /opt/only-here/big > /dev/null"], stdout=subprocess.PIPE)
        assert q.stdout.readline() == b"up\n"
        laptop.cut()
        for task in control.json("task", "list"):
            assert control.virga("task", "cancel", task["id"]).returncode == 0
        wait_for("both to end", lambda: not control.json("task", "list"))
        laptop.heal()
        for each in (p, q):
            each.communicate(timeout=60)
            assert each.returncode != 0
        assert control.virga("down").returncode == 0
        wait_for("the file daemon to leave", lambda: not daemons(control.home))
        assert control.leftovers() == []
    finally:
        network.close()
