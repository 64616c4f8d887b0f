"""Tasks that live longer than their caller: detach, attach, logs, wait, cancel, sessions, limits, ports."""
import json
import os
import re
import socket
import subprocess

import pytest
from virga import WAIT_S, Terminal, wait_for

CONFIG = """
limits:
  log_head: 16K
  log_tail: 16K
pools:
  - name: default
  - name: small
    shape: {cpus: 1, mem: 256M}
    max_time: 1h
default_pool: default
"""
ID = re.compile(r"^[0-9a-f]{6,16}$")


def detach(cloud, *argv, options=()):
    task = cloud.out("vrun", "-d", *options, *argv)
    assert ID.match(task), f"vrun -d printed {task!r}, not an id alone"
    return task


def batch(cloud, *argv, options=()):
    task = cloud.out("vbatch", *options, *argv)
    assert ID.match(task), f"vbatch printed {task!r}, not an id alone"
    return task


# ---------------------------------------------------------------------- detached tasks


def test_detach_prints_the_id_alone_and_the_task_runs(cloud):
    task = detach(cloud, "sh", "-c", "echo hello; exit 3")
    assert cloud.virga("task", "wait", task).returncode == 3
    assert cloud.virga("task", "logs", task).stdout == b"hello\n"
    info = cloud.task(task)
    assert (info["state"], info["status"]) == ("failed", 3)


def test_wait_gives_the_status_of_a_success(cloud):
    assert cloud.virga("task", "wait", detach(cloud, "true")).returncode == 0


def test_wait_gives_128_plus_n_for_a_signal(cloud):
    assert cloud.virga("task", "wait", detach(cloud, "sh", "-c", "kill -TERM $$; sleep 9")).returncode == 143


def test_a_batch_task_runs_and_its_output_is_kept(cloud):
    task = batch(cloud, "sh", "-c", "echo out; echo err >&2; exit 4")
    assert cloud.virga("task", "wait", task).returncode == 4
    logs = cloud.virga("task", "logs", task)
    assert (logs.stdout, logs.stderr) == (b"out\n", b"err\n")


def test_a_batch_task_can_be_followed(cloud):
    done = cloud.run(["vbatch", "-f", "sh", "-c", "echo one; echo two >&2; exit 5"])
    assert done.returncode == 5
    assert b"one\n" in done.stdout


def test_a_batch_task_has_no_input(cloud):
    task = batch(cloud, "sh", "-c", "cat; echo end")
    assert cloud.virga("task", "wait", task).returncode == 0
    assert cloud.virga("task", "logs", task).stdout == b"end\n"


def test_a_batch_task_that_does_not_exist_fails_with_127(cloud):
    task = batch(cloud, "no-such-command-here")
    assert cloud.virga("task", "wait", task).returncode == 127


def test_attach_replays_the_output_and_gives_the_status(cloud):
    os.mkfifo(cloud.work / "go1")
    task = detach(cloud, "sh", "-c", "echo before; read -r x < go1; echo after; exit 6")
    wait_for("the first line", lambda: b"before" in cloud.virga("task", "logs", task).stdout)
    p = cloud.popen(["virga", "attach", task])
    assert p.stdout.readline() == b"before\n"
    (cloud.work / "go1").write_text("go\n")
    out, err = p.communicate(timeout=WAIT_S)
    assert (p.returncode, out) == (6, b"after\n"), err


def test_attach_twice_the_second_takes_over(cloud):
    os.mkfifo(cloud.work / "go2")
    task = detach(cloud, "sh", "-c", "echo before; read -r x < go2; echo after")
    first = cloud.popen(["virga", "attach", task])
    assert first.stdout.readline() == b"before\n"
    second = cloud.popen(["virga", "attach", task])
    assert second.stdout.readline() == b"before\n"
    (cloud.work / "go2").write_text("go\n")
    assert second.communicate(timeout=WAIT_S)[0] == b"after\n"
    assert second.returncode == 0
    first.communicate(timeout=WAIT_S)


def test_attach_to_an_ended_task_shows_what_was(cloud):
    task = detach(cloud, "sh", "-c", "echo was; exit 7")
    cloud.virga("task", "wait", task)
    done = cloud.virga("attach", task)
    assert (done.returncode, done.stdout) == (7, b"was\n"), done.stderr


def test_a_terminal_can_be_taken_over_from_another(cloud):
    with Terminal(["vrun", "-n", "taken", "sh", "-c", "echo ready; read -r x; echo got=$x; exit 5"], cloud.env,
                  cloud.work) as first:
        first.expect("ready")
        with Terminal(["virga", "attach", "taken"], cloud.env, cloud.work) as second:
            second.expect("ready")
            first.expect("another client took over")
            assert first.wait() == 125
            second.send("typed\r")
            second.expect("got=typed")
            assert second.wait() == 5


# ---------------------------------------------------------------------- logs


def test_logs_follow_until_the_end(cloud):
    os.mkfifo(cloud.work / "go3")
    task = detach(cloud, "sh", "-c", "echo one; read -r x < go3; echo two")
    p = cloud.popen(["virga", "task", "logs", "-f", task])
    assert p.stdout.readline() == b"one\n"
    (cloud.work / "go3").write_text("go\n")
    assert p.communicate(timeout=WAIT_S)[0] == b"two\n"
    assert p.returncode == 0


def test_logs_are_binary_safe(cloud):
    task = detach(cloud, "python3", "-c", "import os; os.write(1, bytes(range(256)) * 8)")
    cloud.virga("task", "wait", task)
    assert cloud.virga("task", "logs", task).stdout == bytes(range(256)) * 8


def test_logs_of_an_interactive_task_are_kept_too(cloud):
    done = cloud.vrun("-n", "with-a-name", "echo", "shown and kept")
    assert done.stdout == b"shown and kept\n"
    wait_for("the log", lambda: cloud.virga("task", "logs", "with-a-name").stdout == b"shown and kept\n")


def test_long_output_is_truncated_in_the_middle_and_says_so(cloud):
    """Head and tail are 16 KiB in this cloud."""
    task = detach(cloud, "seq", "-f", "line %06g", "1", "100000")
    assert cloud.virga("task", "wait", task).returncode == 0
    logs = cloud.virga("task", "logs", task)
    assert logs.stdout.startswith(b"line 000001\nline 000002\n")
    assert logs.stdout.endswith(b"line 099999\nline 100000\n")
    assert len(logs.stdout) < 100_000
    assert b"not kept" in logs.stderr and logs.stderr.count(b"\n") == 1


def test_truncation_does_not_touch_what_the_caller_sees(cloud):
    done = cloud.vrun("seq", "100000")
    assert done.stdout == b"".join(b"%d\n" % i for i in range(1, 100001))


# ---------------------------------------------------------------------- list, cancel, signal, time


def test_list_as_json_and_table(cloud):
    task = detach(cloud, "sleep", "300", options=("-n", "sleeper", "-l", "kind=test"))
    cloud.wait_state(task, "running")
    listed = {t["id"]: t for t in cloud.json("task", "list")}
    mine = next(t for key, t in listed.items() if key.startswith(task))
    assert mine["name"] == "sleeper" and mine["argv"] == ["sleep", "300"] and mine["labels"] == {"kind": "test"}
    assert b"sleeper" in cloud.virga("task", "list").stdout
    assert [t["name"] for t in cloud.json("task", "list", "-l", "kind=test")] == ["sleeper"]
    assert cloud.virga("task", "cancel", task).returncode == 0
    cloud.wait_state(task, "cancelled")


def test_cancel_sends_term_first(cloud):
    task = detach(cloud, "sh", "-c", "trap 'echo cleaning up; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    wait_for("the task", lambda: b"ready" in cloud.virga("task", "logs", task).stdout)
    assert cloud.virga("task", "cancel", task).returncode == 0
    assert cloud.wait_state(task, "cancelled")
    assert b"cleaning up" in cloud.virga("task", "logs", task).stdout


def test_cancel_kills_what_ignores_term(cloud):
    task = detach(cloud, "sh", "-c", "trap '' TERM HUP INT; echo ready; while :; do sleep 0.05; done")
    wait_for("the task", lambda: b"ready" in cloud.virga("task", "logs", task).stdout)
    assert cloud.virga("task", "cancel", "--grace", "1s", task).returncode == 0
    cloud.wait_state(task, "cancelled")


def test_cancel_of_a_running_vrun_ends_it(cloud):
    p = cloud.popen(["vrun", "-n", "cancel-me", "sh", "-c", "echo ready; exec sleep 300"])
    assert p.stdout.readline() == b"ready\n"
    assert cloud.virga("task", "cancel", "cancel-me").returncode == 0
    assert p.wait(timeout=WAIT_S) != 0


def test_signal_reaches_a_task(cloud):
    task = detach(cloud, "sh", "-c", "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.05; done")
    wait_for("the task", lambda: b"ready" in cloud.virga("task", "logs", task).stdout)
    assert cloud.virga("task", "signal", task, "USR1").returncode == 0
    assert cloud.virga("task", "wait", task).returncode == 0


def test_time_limit_ends_a_task_and_says_so(cloud):
    done = cloud.vrun("--time", "1s", "sleep", "300")
    assert done.returncode != 0
    assert done.stderr.count(b"\n") == 1 and b"1" in done.stderr


def test_time_limit_of_a_batch_task_is_its_reason(cloud):
    task = batch(cloud, "sleep", "300", options=("--time", "1s"))
    assert cloud.virga("task", "wait", task).returncode != 0
    assert "time" in (cloud.task(task)["reason"] or "")


def test_retries_start_a_failing_batch_task_again(cloud):
    task = batch(cloud, "sh", "-c", "echo x >> tries; exit 9", options=("--retries", "2"))
    assert cloud.virga("task", "wait", task).returncode == 9
    assert (cloud.work / "tries").read_text() == "x\nx\nx\n"
    assert cloud.task(task)["attempt"] == 3


def test_memory_limit_is_the_tasks_own_problem(cloud):
    done = cloud.vrun("--mem", "64M", "python3", "-c", "x = bytearray(512 << 20); x[::4096] = b'1' * len(x[::4096])")
    assert done.returncode in (137, 1)
    assert cloud.vrun("echo", "fine").stdout == b"fine\n"


# ---------------------------------------------------------------------- pools, nodes, status


def test_pools_nodes_and_status(cloud):
    assert {p["name"] for p in cloud.json("pool", "list")} == {"default", "small"}
    nodes = cloud.json("node", "list")
    assert len(nodes) == 1 and nodes[0]["state"] == "ready"
    status = cloud.json("status")
    assert status["nodes_ready"] == 1 and status["home"] == os.path.realpath(cloud.home)
    assert cloud.vrun("-P", "small", "echo", "there").stdout == b"there\n"


def test_a_drained_node_starts_nothing_new_until_resumed(cloud):
    node = cloud.json("node", "list")[0]["name"]
    assert cloud.virga("node", "drain", node).returncode == 0
    p = cloud.popen(["vrun", "-n", "waits-for-node", "echo", "ran"])
    wait_for("the task to queue", lambda: any(t["name"] == "waits-for-node" and t["state"] == "queued"
                                              for t in cloud.json("task", "list")))
    assert cloud.virga("node", "resume", node).returncode == 0
    assert p.communicate(timeout=WAIT_S)[0] == b"ran\n"


def test_a_full_cloud_queues_and_says_so(cloud):
    cpus = cloud.json("node", "list")[0]["total"]["cpu_milli"] // 1000
    hold = detach(cloud, "sleep", "300", options=("--cpus", str(cpus)))
    cloud.wait_state(hold, "running")
    p = cloud.popen(["vrun", "--cpus", "1", "echo", "at last"])
    line = p.stderr.readline()
    assert line.startswith(b"vrun: queued") or b"queued" in line, line
    cloud.virga("task", "cancel", hold)
    assert p.communicate(timeout=WAIT_S)[0] == b"at last\n"


# ---------------------------------------------------------------------- sessions


def test_a_session_keeps_its_processes_and_files(cloud):
    assert cloud.vrun("-s", "work", "sh", "-c", "echo kept > /tmp/in-session").returncode == 0
    assert cloud.vrun("-s", "work", "cat", "/tmp/in-session").stdout == b"kept\n"
    assert cloud.vrun("cat", "/tmp/in-session").returncode == 1
    assert [s["name"] for s in cloud.json("session", "list")] == ["work"]
    assert cloud.virga("session", "end", "work").returncode == 0
    wait_for("the session's end", lambda: cloud.json("session", "list") == [])
    assert cloud.vrun("-s", "work", "cat", "/tmp/in-session").returncode == 1
    cloud.virga("session", "end", "work")


def test_two_commands_run_in_one_session_at_once(cloud):
    os.mkfifo(cloud.work / "go4")
    p = cloud.popen(["vrun", "-s", "pair", "sh", "-c", "echo ready; read -r x < go4; cat /tmp/other"])
    assert p.stdout.readline() == b"ready\n"
    assert cloud.vrun("-s", "pair", "sh", "-c", "echo from the other > /tmp/other").returncode == 0
    (cloud.work / "go4").write_text("go\n")
    assert p.communicate(timeout=WAIT_S)[0] == b"from the other\n"
    cloud.virga("session", "end", "pair")


def test_a_session_goes_after_its_keep_time(cloud):
    assert cloud.vrun("-s", "short", "--keep", "1s", "true").returncode == 0
    wait_for("the session to go", lambda: not any(s["name"] == "short" for s in cloud.json("session", "list")))


# ---------------------------------------------------------------------- ports, nesting, environment


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def test_port_forward(cloud):
    port = free_port()
    p = cloud.popen(["vrun", "-p", f"{port}:8123", "python3", "-uc", """
import socket
s = socket.create_server(("127.0.0.1", 8123))
print("listening")
for _ in range(2):
    c, _ = s.accept()
    data = b""
    while chunk := c.recv(65536):
        data += chunk
    c.sendall(b"got %d bytes" % len(data))
    c.close()
"""])
    assert p.stdout.readline() == b"listening\n"
    for size in (3, 1_000_000):
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as c:
            c.sendall(b"x" * size)
            c.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := c.recv(4096):
                answer += chunk
        assert answer == b"got %d bytes" % size
    out, err = p.communicate(timeout=WAIT_S)
    assert p.returncode == 0, err


def test_vrun_inside_a_task_makes_a_child(cloud):
    done = cloud.vrun("-n", "outer", "sh", "-c", "echo outer; vrun -n inner sh -c 'echo inner; exit 8'; echo $?")
    assert (done.returncode, done.stdout) == (0, b"outer\ninner\n8\n"), done.stderr
    tasks = {t["name"]: t for t in cloud.json("task", "list", "-a")}
    assert "inner" not in tasks, "it is folded under the task that made it"
    inner = cloud.json("task", "get", "inner")
    assert inner["parent"] == tasks["outer"]["id"]


def test_a_pipe_through_a_nested_vrun(cloud):
    done = cloud.vrun("sh", "-c", "seq 1000 | vrun sort -rn | head -1")
    assert done.stdout == b"1000\n", done.stderr


def test_task_variables(cloud):
    out = cloud.out("vrun", "sh", "-c", "echo $VIRGA_TASK_ID")
    assert re.match(r"^[0-9a-f]+$", out)


def test_environment_option(cloud):
    assert cloud.out("vrun", "-e", "A=b", "-e", "HOME=/elsewhere", "sh", "-c", "echo $A $HOME") == "b /elsewhere"


def test_directory_option(cloud):
    (cloud.work / "sub dir").mkdir()
    assert cloud.out("vrun", "-C", "sub dir", "sh", "-c", "basename \"$PWD\"") == "sub dir"


def test_no_input_option(cloud):
    done = cloud.vrun("-I", "cat", input=b"left alone")
    assert (done.returncode, done.stdout) == (0, b"")


def test_watch_prints_changes(cloud):
    first = detach(cloud, "sleep", "600", options=("-n", "watched-first"))
    p = cloud.popen(["virga", "task", "watch", "-o", "json"])
    assert p.stdout.readline(), p.stderr.read()  # of the first: it watches now
    task = detach(cloud, "true", options=("-n", "watched"))
    cloud.virga("task", "wait", task)
    cloud.virga("task", "cancel", first, check=0)
    seen = []
    while not seen or seen[-1] != "succeeded":
        line = json.loads(p.stdout.readline())
        if line.get("name") == "watched":
            seen.append(line["state"])
    assert seen[-1] == "succeeded"
    p.kill()
    p.communicate()


def test_many_tasks_at_once(cloud):
    ps = [cloud.popen(["vrun", "sh", "-c", f"echo {i}; exit {i % 7}"]) for i in range(60)]
    for i, p in enumerate(ps):
        out, err = p.communicate(timeout=120)
        assert (p.returncode, out) == (i % 7, b"%d\n" % i), err


def test_examples_of_bad_ids(cloud):
    for verb in ("get", "logs", "wait", "cancel"):
        done = cloud.virga("task", verb, "zzzz-not-there")
        assert done.returncode == 125 and done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.parametrize("argv", [["virga", "task", "list"], ["virga", "status"], ["virga", "node", "list"],
                                  ["virga", "pool", "list"], ["virga", "session", "list"], ["virga", "user", "list"],
                                  ["virga", "token", "list"], ["virga", "help"], ["virga", "--version"],
                                  ["vrun", "--help"], ["vbatch", "--help"]], ids=" ".join)
def test_every_listing_works(cloud, argv):
    done = cloud.run(argv)
    assert done.returncode == 0 and done.stdout and not done.stderr
    assert subprocess.run(argv, env=cloud.env, stdout=open("/dev/full", "wb"), stderr=subprocess.PIPE,
                          check=False).returncode != -11
