"""`vrun CMD` behaves as CMD: every case is run twice, once plain and once with vrun in front, in folders
that were made alike, and what a caller can see (output, errors, exit status, files) must be the same.

In the scripts `VR ` stands for nothing in the plain run and for `vrun ` in the other."""
import os
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from virga import WAIT_S, descendants_of, processes_of, rss_kib, wait_for

ALL_BYTES = bytes(range(256))
ARGV = "python3 -c 'import os,sys; print([os.fsencode(a) for a in sys.argv[1:]])'"


class Case:
    """`stderr` False: the shell's words and ours differ there and are not compared."""

    def __init__(self, name, script, stderr=True):
        self.name, self.script, self.stderr = name, script, stderr


def case(name, script, stderr=True):
    return Case(name, script, stderr)


STATUS = [case(f"exit_{n}", f"VR sh -c 'exit {n}'; echo $?") for n in
          (0, 1, 2, 42, 77, 124, 125, 126, 127, 128, 130, 137, 200, 255)]
SIGNALS = [case(f"dies_of_SIG{name}", f"VR sh -c 'kill -{name} $$; sleep 9'; echo $?", stderr=False) for name in
           ("HUP", "INT", "QUIT", "ABRT", "FPE", "KILL", "SEGV", "PIPE", "ALRM", "TERM", "USR1", "USR2", "XCPU")]

STREAMS = [
    case("stdout_and_stderr_stay_apart", "VR sh -c 'echo out; echo err >&2'"),
    case("many_lines_on_both", "VR sh -c 'for i in $(seq 500); do echo o$i; echo e$i >&2; done'"),
    case("both_to_one_pipe_keep_their_order",
         "VR sh -c 'for i in $(seq 300); do echo o$i; echo e$i >&2; done' 2>&1 | md5sum"),
    case("stdin_from_a_file", "VR cat < lines"),
    case("stdin_from_a_pipe", "cat lines | VR cat"),
    case("stdin_from_dev_null", "VR cat < /dev/null; echo $?"),
    case("stdin_closed", "VR cat <&-; echo $?", stderr=False),
    case("stdout_closed", "VR sh -c 'echo x' >&-; echo $?", stderr=False),
    case("stderr_closed", "VR sh -c 'echo x; echo y >&2' 2>&-"),
    case("stdout_and_stderr_closed", "VR sh -c 'exit 3' >&- 2>&-; echo $?"),
    case("stdin_here_document", "VR cat <<E\none\ntwo\nE"),
    case("stdin_here_string", "VR tr a-z A-Z <<< hello"),
    case("stdin_process_substitution", "VR cat < <(seq 3)"),
    case("stdin_ends_before_the_command", "printf x | VR sh -c 'cat; echo done'"),
    case("stdin_arrives_in_pieces", "(echo a; sleep 0.2; echo b; sleep 0.2; echo c) | VR cat"),
    case("stdin_unread", "seq 100000 | VR true; echo ${PIPESTATUS[1]}"),
    case("stdin_is_not_eaten_by_a_loop_over_a_file", "while read -r l; do VR echo \"got $l\"; done < lines"),
    case("stdin_is_not_eaten_by_a_loop_over_a_pipe", "cat lines | while read -r l; do VR echo \"got $l\"; done"),
    case("stdin_file_offset_is_shared", "(read -r a; VR cat; echo \"first $a\") < lines"),
    case("stdin_file_offset_moves_for_the_next_reader", "(VR sh -c 'read -r a; echo \"$a\"'; cat) < lines"),
    case("stdin_pipe_is_left_for_the_next_reader", "cat lines | (VR sh -c 'read -r a; echo \"$a\"'; cat)"),
    case("head_closes_its_input_early", "yes | VR head -1; echo ${PIPESTATUS[1]}"),
    case("reader_closes_early", "VR yes | head -1; echo ${PIPESTATUS[0]}"),
    case("reader_closes_early_in_the_middle", "VR cat /dev/zero | head -c 3000000 | wc -c; echo ${PIPESTATUS[0]}"),
    case("reader_is_gone_from_the_start", "VR yes | true; echo ${PIPESTATUS[0]}"),
    case("three_in_a_pipe", "VR seq 20000 | VR sort -rn | VR head -3"),
    case("binary_data_out", "VR cat all-bytes | od -An -tx1"),
    case("binary_data_through", "VR cat < all-bytes | cmp - all-bytes && echo same"),
    case("megabytes_through", "VR cat < big | cmp - big && echo same"),
    case("megabytes_on_stderr", "VR sh -c 'cat big >&2' 2>&1 >/dev/null | md5sum"),
    case("slow_reader", "VR seq 200000 | (sleep 0.3; md5sum)"),
    case("slow_writer", "(for i in 1 2 3; do echo $i; sleep 0.1; done) | VR cat"),
    case("no_newline_at_the_end", "VR printf abc; VR printf def"),
    case("empty_output", "VR true"),
    case("nul_bytes", r"VR printf 'a\0b\0' | od -c"),
    case("stdout_to_a_file", "VR seq 5 > out; cat out"),
    case("stdout_appended", "echo first > out; VR seq 3 >> out; VR seq 3 >> out; cat out"),
    case("stdout_to_dev_null", "VR seq 5 > /dev/null; echo $?"),
    case("stdout_to_dev_full", "VR sh -c 'echo x' > /dev/full; test $? -ne 0; echo $?", stderr=False),
    case("dev_stdin_is_a_pipe", "echo hi | VR cat /dev/stdin"),
    case("dev_stdin_is_a_file", "VR cat /dev/stdin < lines"),
    case("dev_fd_0", "echo hi | VR cat /dev/fd/0"),
    case("dev_stdout_reopened", "VR sh -c 'echo o > /dev/stdout'"),
    case("dev_stderr_reopened", "VR sh -c 'echo e > /dev/stderr'"),
    case("tee_to_dev_stderr", "echo both | VR tee /dev/stderr"),
    case("command_closes_its_stdout_first", "VR sh -c 'exec >&-; echo e >&2; exit 4'; echo $?"),
    case("background_child_is_waited_for", "VR sh -c '(sleep 0.2; echo late) & echo early; wait'"),
    case("command_substitution", "x=$(VR echo inner); echo \"[$x]\""),
    case("process_substitution_output", "diff <(VR seq 5) <(seq 5) && echo same"),
    case("no_terminal", "VR sh -c 'test -t 0 || test -t 1 || test -t 2; echo $?'"),
    case("tty_says_not_a_tty", "VR tty; echo $?"),
]

ARGUMENTS = [
    case("empty_arguments", f"VR {ARGV} '' a '' ''"),
    case("newlines_tabs_quotes", f"VR {ARGV} $'a\\nb' $'\\t' \"it's\" '\"' '\\' '$HOME' '*' ' '"),
    case("invalid_utf8", f"VR {ARGV} $'\\xff\\xfe' $'caf\\xe9'"),
    case("unicode", f"VR {ARGV} 日本語 ñ 🌧"),
    case("leading_dashes", f"VR {ARGV} -x --yes -- -d --pool p"),
    case("options_of_the_command_are_its_own", "VR echo -n -d -P x --help; echo; VR ls -d /"),
    case("single_argument_of_120_KiB", "VR sh -c 'echo ${#1}' - \"$(head -c 122880 /dev/zero | tr '\\0' x)\""),
    case("five_thousand_arguments", "VR sh -c 'echo $# $5000' - $(seq 5000)"),
    case("a_megabyte_of_arguments", "VR sh -c 'echo $#; echo \"$*\" | md5sum' - $(seq -f 'argument-%010g' 40000)"),
    case("argument_zero", "VR sh -c 'echo $0'; VR bash -c 'echo $0' name"),
]

ENVIRONMENT = [
    case("variable", "FOO=bar VR sh -c 'echo $FOO'"),
    case("empty_variable", "FOO= VR sh -c 'echo ${FOO-unset}'"),
    case("unset_variable", "unset FOO; VR sh -c 'echo ${FOO-unset}'"),
    case("variable_with_newline", "FOO=$'a\\nb' VR sh -c 'echo \"$FOO\"'"),
    case("variable_with_invalid_utf8", "FOO=$'\\xff\\x01' VR sh -c 'printf %s \"$FOO\"' | od -c"),
    case("odd_variable_names", "env 'a-b=c' '1x=y' 'sp ace=z' '=weird' VR env | grep -aE '^(a-b|1x|sp ace)=' | sort"),
    case("the_whole_environment", "VR env | grep -av -e ^VIRGA_ -e ^_= | sort"),
    case("huge_variable", "A=$(head -c 120000 /dev/zero | tr '\\0' a) VR sh -c 'echo ${#A}'"),
    case("a_megabyte_of_environment",
         "for i in $(seq 10); do export V$i=$(head -c 100000 /dev/zero | tr '\\0' v); done;"
         " VR sh -c 'echo ${#V1} ${#V10}'"),
    case("locale", "LC_ALL=C VR sh -c 'echo $LC_ALL $LANG'; LC_ALL=C.UTF-8 VR python3 -c 'print(len(\"ñ\"))'"),
    case("time_zone", "TZ=Asia/Tokyo VR date -d @0 +%H:%M"),
    case("home_and_user", "VR sh -c 'echo $HOME $USER $LOGNAME $SHELL'"),
    case("ids", "VR id"),
    case("groups", "VR id -G"),
    case("who_am_i", "VR whoami"),
    case("hostname", "VR hostname; VR uname -n"),
    case("kernel", "VR uname -srm"),
    case("only_three_descriptors_are_open", "VR ls /proc/self/fd < /dev/null | cat"),
    case("umask_077", "umask 077; VR sh -c 'umask; touch f; mkdir d'; stat -c %a f d"),
    case("umask_002", "umask 002; VR sh -c 'umask; touch f'; stat -c %a f"),
    case("ulimit_n", "ulimit -n 512; VR sh -c 'ulimit -n; ulimit -Hn'"),
    case("ulimit_c", "ulimit -c 0; VR sh -c 'ulimit -c'"),
    case("ulimit_s", "ulimit -s 4096; VR sh -c 'ulimit -s'"),
    case("ulimit_f", "ulimit -f 10; VR sh -c 'ulimit -f'"),
    case("ulimit_t", "ulimit -t 1000; VR sh -c 'ulimit -t'"),
    case("nice", "nice -n 7 VR nice"),
    case("ignored_signals_stay_ignored", "trap '' USR1; VR sh -c 'kill -USR1 $$; echo survived'"),
    case("nohup", "nohup VR sh -c 'kill -HUP $$; echo survived' 2>/dev/null; cat nohup.out 2>/dev/null"),
    case("signal_mask_is_clean", "VR grep -E '^Sig(Blk)' /proc/self/status"),
]

DIRECTORY = [
    case("directory", "VR sh -c 'basename \"$PWD\"'; VR /bin/pwd | xargs basename"),
    case("directory_with_spaces", "mkdir 'a b  c' && cd 'a b  c' && VR /bin/pwd | sed 's/.*twin//'; VR touch x; ls"),
    case("directory_with_unicode_and_newline",
         "mkdir $'ü\\n🌧' && cd $'ü\\n🌧' && VR sh -c 'touch f; ls | od -c'; ls"),
    case("directory_that_is_gone", "mkdir gone && cd gone && rmdir ../gone && VR echo still; echo $?"),
    case("directory_through_a_symlink", "mkdir real; ln -s real link; cd link; VR sh -c 'basename $(pwd)'; VR touch x; ls ../real"),
    case("root_directory", "cd / && VR pwd"),
    case("system_directory", "cd /usr/lib && VR pwd && VR ls | md5sum"),
    case("relative_paths", "mkdir -p a/b; echo x > a/f; cd a/b; VR cat ../f"),
    case("parent_is_writable", "mkdir -p p/q; cd p/q; VR sh -c 'echo up > ../made'; cat ../made"),
    case("file_owner_and_mode", "VR touch f; stat -c '%u %g %a %s' f"),
    case("folder_owner_and_mode", "VR mkdir -p a/b/c; stat -c '%u %g %a' a a/b/c"),
    case("symlinks_and_hard_links", "VR sh -c 'echo x > f; ln -s f s; ln f h'; readlink s; stat -c %h f"),
    case("modification_time", "VR touch -d '2001-02-03 04:05:06 UTC' f; stat -c %Y f; VR stat -c %Y f"),
    case("chmod", "echo 'echo ran' > s.sh; VR chmod 755 s.sh; ./s.sh"),
    case("chown_by_root", "touch f; VR chown 1234:2345 f; echo $?; stat -c '%u:%g' f"),
    case("removal", "touch f; VR rm f; ls f 2>/dev/null; echo $?"),
    case("rename", "echo x > a; VR mv a b; cat b; ls a 2>/dev/null"),
    case("file_lock_is_seen", "VR sh -c 'exec 9> lock; flock 9 && echo locked'"),
    case("two_commands_share_the_folder", "VR sh -c 'echo one > f' && VR sh -c 'cat f; echo two >> f' && cat f"),
    case("sparse_file", "VR truncate -s 1G s; stat -c '%s %b' s"),
]

COMMANDS = [
    case("not_found", "VR no-such-command-at-all a b; echo $?", stderr=False),
    case("not_executable", "echo x > plain; chmod 644 plain; VR ./plain; echo $?", stderr=False),
    case("directory_as_command", "VR /usr; echo $?", stderr=False),
    case("missing_path", "VR ./nothing-here; echo $?", stderr=False),
    case("script_without_shebang", "printf 'echo from script $1\\n' > s; chmod +x s; VR ./s arg"),
    case("script_with_shebang", "printf '#!/bin/sh\\necho $0 $1\\n' > s.sh; chmod +x s.sh; VR ./s.sh a"),
    case("found_on_path", "mkdir b; printf '#!/bin/sh\\necho mine\\n' > b/mytool; chmod +x b/mytool; PATH=$PWD/b:$PATH; VR mytool"),
    case("path_order", "mkdir b; printf '#!/bin/sh\\necho mine\\n' > b/ls; chmod +x b/ls; PATH=$PWD/b:$PATH; VR ls"),
    case("absolute_path", "VR /bin/echo x"),
    case("command_is_a_symlink", "ln -s /bin/echo e; VR ./e x"),
    case("shell_logic", "VR true && echo yes; VR false || echo no; if VR grep -q two lines; then echo found; fi"),
    case("errexit", "set -e; VR false; echo not reached"),
    case("status_of_grep", "VR grep nothing lines; echo $?"),
    case("timeout", "timeout 0.5 VR sleep 30; echo $?"),
    case("timeout_kill", "timeout -s KILL 0.5 VR sleep 30; echo $?", stderr=False),
    case("background_job", "VR sleep 0.2 & wait $!; echo $?"),
    case("killed_background_job", "VR sleep 30 & sleep 0.5; kill $!; wait $!; echo $?", stderr=False),
    case("interrupted_background_job", "set -m; VR sleep 30 & sleep 0.5; kill -INT $!; wait $!; echo $?", stderr=False),
    case("trap_sees_signal", "VR sh -c 'trap \"echo bye; exit 9\" TERM; kill -TERM $$; sleep 9'; echo $?"),
    case("xargs_32_at_once", "seq 96 | xargs -P 32 -n 1 VR echo | sort -n | md5sum"),
    case("xargs_with_status", "seq 3 | xargs -n 1 VR sh -c 'exit 1'; echo $?"),
    case("find_exec", "mkdir t; touch t/a t/b; find t -type f -exec VR echo {} \\; | sort"),
    case("make", "printf 'all:\\n\\t@echo made\\n' > Makefile; VR make --no-print-directory"),
    case("python", "VR python3 -c 'import sys; print(sys.stdin.read().upper(), end=\"\")' < lines"),
    case("git", "VR git init -q r && cd r && VR git -c user.name=a -c user.email=b commit -q --allow-empty -m x"
         " && VR git log --format=%s"),
    case("compiler", "echo 'int main(void){return 5;}' > m.c; VR cc -o m m.c && VR ./m; echo $?"),
    case("tar", "mkdir t; cp lines t; VR tar cf - t | VR tar tf -"),
    case("awk_and_sort", "VR awk '{print length($0)}' lines | VR sort -n"),
    case("threads", "VR python3 -c 'import threading as t; x=[t.Thread(target=print,args=(1,)) for _ in range(8)];"
         " [i.start() for i in x]; [i.join() for i in x]' | wc -l"),
    case("many_processes", "VR sh -c 'for i in $(seq 200); do true | true; done; echo ok'"),
    case("shared_memory", "VR python3 -c 'from multiprocessing import Pool; print(sum(Pool(2).map(abs, range(10))))'"),
    case("loopback_network", "VR python3 -c 'import socket as s; l=s.create_server((\"127.0.0.1\",0));"
         " c=s.create_connection(l.getsockname()); a,_=l.accept(); c.send(b\"hi\"); print(a.recv(9))'"),
]

CASES = STATUS + SIGNALS + STREAMS + ARGUMENTS + ENVIRONMENT + DIRECTORY + COMMANDS


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Files that every case finds in its folder."""
    folder = tmp_path_factory.mktemp("material")
    (folder / "lines").write_text("one\ntwo\nthree\nfour words are here\n")
    (folder / "all-bytes").write_bytes(ALL_BYTES)
    (folder / "big").write_bytes(os.urandom(1 << 20) * 7 + b"tail")
    return folder


def perform(cloud, material, script, prefix):
    """Runs a script in a fresh folder of the same name; everything a caller can see. It lies in the caller's home,
    which tasks share as a whole; elsewhere only the working directory itself is shared."""
    top = tempfile.mkdtemp(prefix=".vgt-", dir=os.path.expanduser("~"))
    folder = os.path.join(top, "twin")
    shutil.copytree(material, folder)
    try:
        done = cloud.sh(script.replace("VR ", prefix), cwd=folder, timeout=90)
        hide = top.encode()
        return done.returncode, done.stdout.replace(hide, b"TOP"), done.stderr.replace(hide, b"TOP")
    finally:
        shutil.rmtree(top, ignore_errors=True)


def test_there_are_enough_cases_and_no_two_share_a_name():
    names = [c.name for c in CASES]
    assert len(set(names)) == len(names) >= 60


def test_the_comparison_can_fail(cloud, material):
    plain = perform(cloud, material, "VR echo a", "")
    assert plain != perform(cloud, material, "VR echo a", "echo not ")


@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_same_as_plain(cloud, material, c):
    status, out, err = perform(cloud, material, c.script, "")
    v_status, v_out, v_err = perform(cloud, material, c.script, "vrun ")
    assert (v_status, v_out[:4000]) == (status, out[:4000]), v_err.decode(errors="replace")[:2000]
    assert v_out == out
    if c.stderr:
        assert v_err == err


# ---------------------------------------------------------------------- bulk and memory


def watch_rss(pids_of, done):
    """The largest resident size (KiB) each of the processes had until done() is true."""
    peak = {}
    while not done():
        for pid in pids_of():
            peak[pid] = max(peak.get(pid, 0), rss_kib(pid))
        time.sleep(0.02)
    return peak


@pytest.mark.parametrize("direction", ["in_and_out", "out"])
def test_gigabytes_pass_in_constant_memory(cloud, direction):
    """1 GB by default, 10 GB with VIRGA_SLOW=1."""
    size = 10_000_000_000 if os.environ.get("VIRGA_SLOW") else 1_000_000_000
    script = {"in_and_out": f"head -c {size} /dev/zero | vrun cat | wc -c",
              "out": f"vrun head -c {size} /dev/zero | wc -c"}[direction]
    p = cloud.popen(["bash", "-c", script])
    agent = cloud.pid("agent")
    mine = {pid for pid, name in processes_of(cloud.home)}

    def pids_of():
        return mine | set(subprocess_tree(p.pid)) | set(subprocess_tree(agent))

    peak = watch_rss(pids_of, lambda: p.poll() is not None)
    out, err = p.communicate()
    assert out.strip() == str(size).encode(), err
    assert peak and max(peak.values()) < 96 * 1024, {k: v for k, v in peak.items() if v > 64 * 1024}


def subprocess_tree(pid):
    return [pid, *descendants_of(pid)]


def test_a_stopped_reader_stops_the_writer(cloud):
    """The reader takes nothing: the producer must block instead of filling somebody's memory."""
    mark = cloud.work / "progress"
    os.mkfifo(cloud.work / "go")
    p = cloud.popen(["bash", "-c", f"vrun sh -c 'i=0; while :; do echo $i > {mark}; head -c 1048576 /dev/zero || exit;"
                     f" i=$((i+1)); done' | (read -r _ < {cloud.work}/go; head -c 1000 | wc -c)"])
    wait_for("the producer's first megabytes", lambda: mark.exists() and mark.read_text().strip())
    last = steady(mark)
    assert int(last) <= 24, f"the producer wrote {last} MiB that nobody read"
    with open(cloud.work / "go", "w", encoding="ascii") as f:
        f.write("go\n")
    assert p.communicate(timeout=WAIT_S)[0].strip() == b"1000"
    os.unlink(cloud.work / "go")


def steady(path):
    """The file's text once it has not changed for a second."""
    last, since = None, time.monotonic()
    while time.monotonic() - since < 1:
        text = path.read_text()
        if text != last:
            last, since = text, time.monotonic()
        time.sleep(0.05)
    return last


def test_arguments_and_environment_up_to_the_kernels_limit(cloud):
    """2 MiB in all is what an 8 MiB stack allows; a few pages are left for vrun's own path."""
    room = os.sysconf("SC_ARG_MAX") - 300_000 - sum(len(k) + len(v) + 10 for k, v in cloud.env.items())
    args = ["x" * 991] * (room // 1000)
    for prefix in ([], ["vrun"]):
        done = cloud.run([*prefix, "sh", "-c", "echo $#", "-", *args])
        assert (done.returncode, done.stdout) == (0, b"%d\n" % len(args)), done.stderr[:500]


def test_what_is_left_on_stdin_of_a_terminal_less_caller_is_not_lost(cloud):
    """A socket as standard input: neither pipe nor file."""
    a, b = socket.socketpair()
    b.sendall(b"through a socket")
    b.shutdown(socket.SHUT_WR)
    done = cloud.vrun("cat", stdin=a)
    a.close()
    b.close()
    assert done.stdout == b"through a socket" and done.returncode == 0
    assert done.stderr == b""


def test_vrun_itself_prints_nothing(cloud):
    done = cloud.vrun("true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_ordinary_process_limits_of_the_caller_do_not_break_vrun(cloud):
    done = subprocess.run(["bash", "-c", "ulimit -n 20; vrun echo ok"], env=cloud.env, cwd=cloud.work,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (b"ok\n", b"")
