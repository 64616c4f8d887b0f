"""Signals sent to vrun from outside reach the command, and what happens to vrun is what would have
happened to the command."""
import os
import signal
import subprocess
import time

import pytest
from virga import WAIT_S, status_field, wait_for

TRAP = "trap 'echo got {0}; exit 7' {0}; echo ready; while :; do sleep 0.05; done"


def read_line(p):
    return p.stdout.readline().strip()


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "WINCH"])
def test_signal_reaches_the_command(cloud, name):
    def go(argv):
        p = cloud.popen(argv)
        assert read_line(p) == b"ready"
        p.send_signal(getattr(signal, "SIG" + name))
        out, err = p.communicate(timeout=WAIT_S)
        return p.returncode, out, err

    script = ["sh", "-c", TRAP.format(name)]
    assert go(["vrun", *script]) == go(script)


@pytest.mark.parametrize("name", ["HUP", "TERM", "USR1", "KILL"])
def test_untrapped_signal_ends_both(cloud, name):
    """As a shell sees it: 128+n."""
    def go(prefix):
        p = cloud.popen(["bash", "-c", f"{prefix}sh -c 'echo ready; exec sleep 60' & read -r x < go; kill -{name} $!;"
                         " wait $!; echo $?"])
        assert read_line(p) == b"ready"
        with open(cloud.work / "go", "w", encoding="ascii") as f:
            f.write("go\n")
        return p.communicate(timeout=WAIT_S)[0]

    os.mkfifo(cloud.work / "go")
    try:
        assert go("vrun ") == go("")
    finally:
        os.unlink(cloud.work / "go")


def test_killing_vrun_ends_the_task(cloud):
    own = f"1000.{os.getpid()}"
    p = cloud.popen(["vrun", "sh", "-c", f"trap '' HUP TERM; echo ready; exec sleep {own}"])
    assert read_line(p) == b"ready"
    p.kill()
    p.wait()
    wait_for("the end of the task", lambda: subprocess.run(
        ["pgrep", "-f", f"^sleep {own}$"], stdout=subprocess.DEVNULL, check=False).returncode == 1)


def test_stop_and_continue(cloud):
    """SIGTSTP stops vrun and the command; SIGCONT lets both go on where they were."""
    # A group of its own: the kernel stops no group that is cut off from its session's others.
    p = cloud.popen(["vrun", "sh", "-c", "echo ready; read -r x; echo got $x"], stdin=subprocess.PIPE,
                    preexec_fn=os.setpgrp)
    assert read_line(p) == b"ready"
    p.send_signal(signal.SIGTSTP)
    wait_for("vrun to stop", lambda: (status_field(p.pid, "State") or "").startswith("T"))
    p.stdin.write(b"input\n")
    p.stdin.flush()
    time.sleep(0.2)  # input would have woken it by now
    assert (status_field(p.pid, "State") or "").startswith("T")
    p.send_signal(signal.SIGCONT)
    out, err = p.communicate(timeout=WAIT_S)
    assert (p.returncode, out, err) == (0, b"got input\n", b"")


def test_a_stopped_vrun_stops_the_command_too(cloud):
    ticks = cloud.work / "ticks"
    p = cloud.popen(["vrun", "sh", "-c", f"echo ready; while :; do echo x >> {ticks}; sleep 0.02; done"],
                    preexec_fn=os.setpgrp)
    assert read_line(p) == b"ready"
    wait_for("the first tick", ticks.exists)
    p.send_signal(signal.SIGTSTP)
    wait_for("vrun to stop", lambda: (status_field(p.pid, "State") or "").startswith("T"))

    def quiet():
        before = ticks.stat().st_size
        time.sleep(0.3)
        return ticks.stat().st_size == before

    wait_for("the command to stop", quiet)
    before = ticks.stat().st_size
    p.send_signal(signal.SIGCONT)
    wait_for("the command to go on", lambda: ticks.stat().st_size > before)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=WAIT_S)


def test_repeated_signals_are_all_delivered_in_order(cloud):
    p = cloud.popen(["vrun", "python3", "-uc", """
import signal, sys
n = 0
def hit(s, f):
    global n
    n += 1
    print(n)
    if n == 20:
        sys.exit(0)
signal.signal(signal.SIGUSR1, hit)
print("ready")
while True:
    signal.pause()
"""])
    assert read_line(p) == b"ready"
    for i in range(1, 21):
        p.send_signal(signal.SIGUSR1)
        assert read_line(p) == b"%d" % i
    assert p.wait(timeout=WAIT_S) == 0
