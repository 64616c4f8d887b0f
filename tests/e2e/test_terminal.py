"""vrun on a real pseudo-terminal: what is seen and typed there is as without it."""
import os
import re
import shutil
import signal

import pytest
from virga import Terminal, wait_for


@pytest.fixture(params=["plain", "vrun"])
def open_terminal(request, cloud):
    """Opens a program on a terminal, once plain and once under vrun; the expectations are the same."""
    opened = []

    def start(*argv, rows=24, cols=80):
        prefix = ["vrun"] if request.param == "vrun" else []
        opened.append(Terminal([*prefix, *argv], cloud.env, cloud.work, rows, cols))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def shell(cloud):
    """An interactive bash with a prompt that can be waited for."""
    with Terminal(["bash", "--norc", "--noprofile", "-i"], {**cloud.env, "PS1": "prompt> "}, cloud.work,
                  term="dumb") as t:
        t.expect("prompt> ")
        yield t


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def test_all_three_are_a_terminal(open_terminal):
    t = open_terminal("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo yes; tty | grep -c /dev/pts/")
    t.expect("yes\r\n1\r\n")
    assert t.wait() == 0


def test_a_pipe_beside_the_terminal(cloud):
    """In `vrun cmd | pager` the pager owns the terminal: vrun leaves its modes alone. stdout is a pipe, stderr is not."""
    os.mkfifo(cloud.work / "go")
    script = ("stty -g > before; vrun sh -c 'test -t 1; echo $?; test -t 2; echo $?; cat go' |"
              " (read -r out; read -r err; echo $out$err; stty -g < /dev/tty > during; echo > go; cat);"
              " cmp before during && echo untouched")
    with Terminal(["sh", "-c", script], cloud.env, cloud.work) as t:
        t.expect("10\r\n")
        t.expect("untouched")
        assert t.wait() == 0
    os.unlink(cloud.work / "go")


def test_size(open_terminal):
    t = open_terminal("stty", "size", rows=37, cols=111)
    t.expect("37 111\r\n")
    assert t.wait() == 0


def test_size_after_a_resize(open_terminal):
    t = open_terminal("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")
    t.expect("24 80\r\n")
    t.resize(50, 132)
    t.expect("50 132\r\n")
    t.resize(10, 20)
    t.expect("10 20\r\n")
    t.send(b"\x03")
    assert t.wait() == 130


def test_input_is_echoed_and_read(open_terminal):
    t = open_terminal("sh", "-c", "read -r x; echo got=$x")
    t.send("hello\r")
    t.expect("hello\r\n")
    t.expect("got=hello\r\n")
    assert t.wait() == 0


def test_password_prompt_echoes_nothing(open_terminal):
    t = open_terminal("sh", "-c", "stty -echo; echo ask; read -r x; stty echo; echo got ${#x}")
    t.expect("ask\r\n")
    t.send("secret\r")
    match = t.expect(r"(?s)(.*)got 6\r\n")
    assert b"secret" not in match.group(1)
    assert t.wait() == 0


def test_ctrl_c(open_terminal):
    t = open_terminal("sh", "-c", "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done")
    t.expect("ready")
    t.send(b"\x03")
    t.expect("interrupted")
    assert t.wait() == 3


def test_ctrl_c_untrapped(open_terminal):
    t = open_terminal("sh", "-c", "echo ready; exec sleep 60")
    t.expect("ready")
    t.send(b"\x03")
    assert t.wait() == 130


def test_ctrl_backslash(open_terminal):
    t = open_terminal("sh", "-c", "trap 'echo quit; exit 4' QUIT; echo ready; while :; do sleep 0.05; done")
    t.expect("ready")
    t.send(b"\x1c")
    t.expect("quit")
    assert t.wait() == 4


def test_ctrl_d_ends_input(open_terminal):
    t = open_terminal("cat")
    t.send("line\r")
    t.expect("line\r\nline\r\n")
    t.send(b"\x04")
    assert t.wait() == 0


def test_raw_bytes_in_raw_mode(open_terminal):
    t = open_terminal("python3", "-c", "import os,sys,tty; tty.setraw(0); os.write(1,b'ready');"
                      " d=b''\nwhile len(d)<256: d+=os.read(0,999)\nos.write(1,b'<%d %d>'%(len(d),d==bytes(range(256))))")
    t.expect("ready")
    t.send(bytes(range(256)))
    t.expect("<256 1>")
    assert t.wait() == 0


def test_the_terminal_is_left_as_it_was(cloud, shell):
    shell.send("stty -g > before; vrun python3 -c 'import tty; tty.setraw(0)'; stty -g > after; cmp before after && echo sa''me\r")
    shell.expect("same")
    shell.expect("prompt> ")


def test_the_terminal_is_left_as_it_was_after_a_kill(cloud, shell):
    shell.send("stty -g > before; vrun sh -c 'kill -9 $$'; stty -g > after; cmp before after && echo sa''me\r")
    shell.expect("same")


@pytest.mark.parametrize("prefix", ["", "vrun "], ids=["plain", "vrun"])
def test_ctrl_z_and_fg(shell, prefix):
    shell.send(f"{prefix}sh -c 'echo re''ady; read -r x; echo got=$x'\r")
    shell.expect("\nready")
    shell.send(b"\x1a")
    shell.expect("Stopped")
    shell.expect("prompt> ")
    shell.send("jobs | grep -c Stopped\r")
    shell.expect("\n1\r\n")
    shell.send("fg\r")
    shell.expect("sh -c")
    shell.send("again\r")
    shell.expect("got=again")
    shell.expect("prompt> ")
    shell.send("echo st=$?\r")
    shell.expect("st=0")


def test_ctrl_z_and_bg(shell, cloud):
    """The command waits without starting anything: dash starts programs by vfork, and one that is stopped in between
    holds its shell, with vrun and without."""
    os.mkfifo(cloud.work / "done")
    shell.send("vrun sh -c 'echo re''ady; read -r x < done; echo fini''shed'\r")
    shell.expect("\nready")
    shell.send(b"\x1a")
    shell.expect("Stopped")
    shell.send("bg\r")
    shell.expect("&")
    shell.send("echo > done; wait; echo wai''ted\r")
    shell.expect("finished")
    shell.expect("waited")


def test_typing_ahead_reaches_the_shell_afterwards(shell):
    """What the command did not read belongs to the shell; only plain input handling can promise that, so the
    command here reads nothing."""
    shell.send("vrun true; echo first\r")
    shell.expect("\nfirst")
    shell.send("echo second\r")
    shell.expect("\nsecond")


def test_hangup_ends_the_command(cloud):
    t = Terminal(["vrun", "sh", "-c", f"trap 'echo hup > {cloud.work}/hup; exit' HUP; echo ready; while :; do sleep 0.05; done"],
                 cloud.env, cloud.work)
    t.expect("ready")
    os.close(t.fd)
    wait_for("the hangup to arrive", (cloud.work / "hup").exists)
    os.kill(t.pid, signal.SIGKILL)
    os.waitpid(t.pid, 0)
    t.status = 0


@needs("vim.tiny")
def test_vim_edits_and_saves(open_terminal, cloud):
    note = cloud.work / "note.txt"
    note.unlink(missing_ok=True)
    t = open_terminal("vim.tiny", "-u", "NONE", "note.txt")
    t.expect("note.txt")
    t.send("ihello from vim\x1b")
    t.send(":wq\r")
    assert t.wait() == 0
    assert note.read_text() == "hello from vim\n"


@needs("top")
def test_top(open_terminal):
    t = open_terminal("top", "-d", "0.3")
    t.expect("load average")
    t.expect("PID")
    t.send("q")
    assert t.wait() == 0


@needs("tmux")
def test_tmux(open_terminal, cloud):
    t = open_terminal("tmux", "-L", f"virga-test-{os.getpid()}", "-f", "/dev/null", "new-session", "sh -c 'echo in''side; read x'")
    t.expect("inside")
    t.send("\r")
    t.expect("exited")
    assert t.wait() == 0


def test_python_prompt(open_terminal):
    t = open_terminal("python3", "-i")
    t.expect(">>> ")
    t.send("6*7\r")
    t.expect("42")
    t.expect(">>> ")
    t.send("import sys; sys.exit(5)\r")
    assert t.wait() == 5


def test_interactive_shell_with_job_control(open_terminal):
    t = open_terminal("bash", "--norc", "--noprofile", "-i")
    t.expect(r"[$#] ")
    t.send("sh -c 'echo re''ady; exec sleep 100'\r")
    t.expect("\\sready")
    t.send(b"\x1a")
    t.expect("Stopped")
    t.send("kill -9 %1; while jobs %1 2>&1 | grep -q Stopped; do sleep 0.05; done; echo al''ive\r")
    t.expect("alive")
    t.send("exit 6\r")
    assert t.wait() == 6


def test_less_pages(open_terminal):
    if not shutil.which("less"):
        pytest.skip("less is not installed")
    t = open_terminal("sh", "-c", "seq 1000 | less")
    t.expect("\r\n1[0-9]\r\n")
    t.send("G")
    t.expect("1000")
    t.send("q")
    assert t.wait() == 0


def test_output_is_not_mangled(open_terminal):
    t = open_terminal("sh", "-c", "seq 5000; printf end")
    text = t.rest()
    assert re.sub(b"\r\n", b"\n", text) == b"".join(b"%d\n" % i for i in range(1, 5001)) + b"end"
    assert t.wait() == 0


def test_many_lines_typed_at_once(open_terminal):
    t = open_terminal("sh", "-c", "stty -echo; echo ready; n=0; while read -r l; do n=$((n+1)); test $l = last && break; done; echo n=$n")
    t.expect("ready")
    for i in range(40):
        t.send(f"line{i}\r")
    t.send("last\r")
    t.expect("n=41")
    assert t.wait() == 0
