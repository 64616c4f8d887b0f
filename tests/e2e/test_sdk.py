"""The Python package on a real cloud: its documentation and examples run as they stand; many items, failures, deaths, Ctrl-C."""
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from virga import LONG, ROOT, Terminal, wait_for

SLOT_MILLI = max(50, len(os.sched_getaffinity(0)) * 1000 // 4)
CONFIG = f"""
scheduler: {{preemption: agreed, min_run: 0s}}
pools:
  - name: default
  - name: cpu
    shape: {{cpus: {SLOT_MILLI / 1000}, mem: 256M}}
    max: {{cpus: 4, mem: 1G}}
default_pool: default
"""
EXAMPLES = sorted((ROOT / "sdk/python/examples").glob("*.py"))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def sdk(cloud):
    """The package where tasks see it, too, wherever the tree lies: in the folder that the scripts run in."""
    shutil.copytree(ROOT / "sdk/python/src/virga", cloud.work / "lib" / "virga", ignore=shutil.ignore_patterns("__pycache__"))
    cloud.env.update(PYTHONPATH=str(cloud.work / "lib"), PYTHONDONTWRITEBYTECODE="1")
    return cloud


def script(cloud, text, name="script.py", status=0, timeout=120):
    """Runs a script and gives what it printed."""
    (cloud.work / name).write_text(text)
    done = cloud.run([sys.executable, name], timeout=timeout)
    assert done.returncode == status, f"{done.stdout.decode()}\n{done.stderr.decode()}\n{cloud.logs()}"
    return done.stdout.decode()


def unfinished(cloud):
    return cloud.json("task", "list")


def wait_quiet(cloud):
    wait_for("every task to end", lambda: not unfinished(cloud))


# ---------------------------------------------------------------------- what is written


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_documentation_is_true(sdk, number):
    script(sdk, BLOCKS[number], f"block{number}.py")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_run(sdk, path):
    out = script(sdk, path.read_text(), f"example_{path.name}")
    said = {"command": "status 3: not today", "function": "it raised: a width of -1", "executor": "2**32 = 4294967296",
            "many": "failed: [(500, ZeroDivisionError('division by zero'))]", "steps": "training with 42", "concurrently": "[4, 9, 16]"}
    assert said[path.stem] in out


def test_the_documentation_has_blocks():
    assert len(BLOCKS) >= 6 and len(EXAMPLES) >= 6


# ---------------------------------------------------------------------- many items


def test_a_thousand_items_over_four_slots(sdk):
    """In order, the bad one at its place, with four tasks and not a thousand."""
    out = script(sdk, """
import virga
@virga.function(pool="cpu", name="thousand")
def f(n):
    if n == 617:
        raise KeyError(n)
    return n * n
if __name__ == "__main__":
    got = list(f.map(range(1000), return_exceptions=True))
    assert [i for i, r in enumerate(got) if isinstance(r, Exception)] == [617]
    assert isinstance(got[617], KeyError) and got[617].args == (617,) and "in f" in str(got[617].__cause__)
    assert all(r == i * i for i, r in enumerate(got) if i != 617)
    seen = []
    try:
        for r in f.map(range(610, 1000)):
            seen.append(r)
    except KeyError as e:
        print("raised", e, seen == [n * n for n in range(610, 617)])
""")
    assert out == "raised 617 True\n"
    tasks = sdk.json("task", "list", "-a", "-n", "thousand", "--limit", "10000")
    assert 1 <= len(tasks) <= 8, "each map has at most as many workers as the pool has slots"
    wait_quiet(sdk)


def test_a_worker_that_dies_concerns_its_item_alone(sdk):
    out = script(sdk, """
import os, signal
import virga
@virga.function(pool="cpu", retries=1, name="mortal")
def f(n):
    if n == 11 and not os.path.exists("died-once"):
        open("died-once", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 23:
        os._exit(9)
    with open(f"ran-{n}", "a") as file:
        file.write("x")
    return n
if __name__ == "__main__":
    got = list(f.map(range(40), return_exceptions=True))
    print([(i, type(r).__name__, r.status) for i, r in enumerate(got) if isinstance(r, Exception)])
    assert [r for r in got if not isinstance(r, Exception)] == [n for n in range(40) if n != 23]
""")
    assert out == "[(23, 'TaskFailed', 9)]\n"
    runs = {n: (sdk.work / f"ran-{n}").read_text() for n in range(40) if n != 23}
    assert set(runs.values()) == {"x"}, runs


def test_a_call_that_takes_too_long_is_ended_and_the_others_are_not(sdk):
    out = script(sdk, """
import time, virga
@virga.function(pool="cpu", concurrency=2, timeout=1.5)
def f(n):
    if n == 3:
        time.sleep(600)
    return n
if __name__ == "__main__":
    print([str(r) for r in f.map(range(8), return_exceptions=True)])
""")
    assert out == "['0', '1', '2', 'f had not returned after 1.5 s', '4', '5', '6', '7']\n"


def test_short_items_do_not_wait_behind_long_ones(sdk):
    out = script(sdk, """
import time
import virga
@virga.function(pool="cpu", concurrency=2)
def f(path):
    import os
    if path == "wait":
        while not os.path.exists("go-on"):
            time.sleep(0.01)
    return path
if __name__ == "__main__":
    results = f.map(["wait"] + [str(n) for n in range(30)], order=False)
    first = [next(results) for _ in range(30)]
    open("go-on", "w").close()
    print("wait" not in first, list(results))
""")
    assert out == "True ['wait']\n"


def test_endless_items_are_taken_as_they_are_needed(sdk):
    out = script(sdk, """
import itertools
import virga
taken = 0
def numbers():
    global taken
    for taken in itertools.count():
        yield taken
@virga.function(pool="cpu", concurrency=1)
def f(n): return n
results = f.map(numbers())
print([next(results) for _ in range(5)], taken < 200)
results.close()
""")
    assert out == "[0, 1, 2, 3, 4] True\n"
    wait_quiet(sdk)


# ---------------------------------------------------------------------- what comes back


def test_what_is_printed_is_not_mixed_with_what_is_returned(sdk):
    (sdk.work / "talk.py").write_text("""
import os, subprocess, sys
import virga
@virga.function(pool="cpu")
def talk(n):
    print("one")
    subprocess.run(["sh", "-c", "echo two; echo three >&2"])
    os.write(1, b"four\\n")
    sys.stderr.write("five\\n")
    print("no newline", end="")
    return b"six" * n
if __name__ == "__main__":
    assert talk.remote(100000) == b"six" * 100000
    print("/after")
    lines = []
    heard = talk.with_options(stream=lambda *l: lines.append(l))
    heard.remote(1)
    assert ("stdout", "two") in lines and ("stderr", "five") in lines, lines
""")
    done = sdk.run([sys.executable, "talk.py"], check=0)
    assert done.stdout == b"one\ntwo\nfour\nno newline/after\n"
    assert done.stderr == b"three\nfive\n"


def test_the_log_has_what_was_printed_and_nothing_else(sdk):
    task = script(sdk, """
import os, subprocess, sys
import virga
@virga.function(pool="cpu", stream=lambda *l: None)
def talk(data):
    print("one")
    subprocess.run(["sh", "-c", "echo two >&2"])
    print("three", end="")
    return os.environ["VIRGA_TASK_ID"], data
if __name__ == "__main__":
    for _ in range(3):
        task, data = talk.remote(b"x" * 3000000)
    print(task)
""").strip()
    sdk.wait_state(task, "succeeded")
    done = sdk.virga("task", "logs", task, check=0)
    assert done.stdout == b"one\nthree" * 3 and done.stderr == b"two\n" * 3


def test_a_preempted_call_goes_to_another_worker(sdk):
    """Four wait; one has to make room for somebody else, and its call begins again. Every result comes once, in its place."""
    (sdk.work / "gives-way.py").write_text("""
import os, time, virga
@virga.function(pool="cpu", name="gives-way", preemptible=True, priority=10)
def f(n):
    with open(f"begun-{n}", "a") as file:
        file.write("x")
    while not os.path.exists("room"):
        time.sleep(0.02)
    return n
if __name__ == "__main__":
    print(list(f.map(range(8))), flush=True)
""")
    begun = lambda: [p.read_text() for p in sdk.work.glob("begun-*")]
    p = sdk.popen([sys.executable, "gives-way.py"])
    wait_for("four calls to run", lambda: len(begun()) == 4)
    urgent = sdk.out("vbatch", "-P", "cpu", "--priority", "90", "true")
    assert sdk.virga("task", "wait", urgent).returncode == 0, sdk.logs()
    (sdk.work / "room").touch()
    out, err = p.communicate(timeout=120)
    assert out == b"[0, 1, 2, 3, 4, 5, 6, 7]\n", err.decode()
    assert sorted("".join(begun())) == ["x"] * 9, "one call began twice, no other did"
    assert [t["preempted"] for t in sdk.json("task", "list", "-a", "-n", "gives-way", "--limit", "100")].count(1) == 1
    wait_quiet(sdk)


def test_a_program_that_ends_waits_for_what_it_spawned(sdk):
    """Also when its worker begins after the last line of the script."""
    script(sdk, """
import virga
@virga.function(pool="cpu")
def late():
    with open("came-late", "w") as file:
        file.write("done")
if __name__ == "__main__":
    late.spawn()
""")
    assert (sdk.work / "came-late").read_text() == "done"
    wait_quiet(sdk)


def test_a_child_of_a_caller_has_workers_of_its_own(sdk):
    out = script(sdk, """
import os, sys
import virga
@virga.function(pool="cpu", idle=60)
def f(n): return n + 1
if __name__ == "__main__":
    assert f.remote(1) == 2
    pid = os.fork()
    if pid == 0:
        print(f.remote(10), flush=True)
        f.close()
        sys.exit(0)  # and does not wait for what is the parent's
    assert os.waitpid(pid, 0)[1] == 0
    print(f.remote(100), f.pool().started)
    f.close()
""")
    assert out == "11\n101 1\n"


def test_deaths_have_status_and_reason(sdk):
    out = script(sdk, """
import os, signal, sys, time
import virga
@virga.function(pool="cpu", mem="96M")
def hog(): return len(bytearray(800 << 20))
@virga.function(pool="cpu")
def quit(): sys.exit(4)
@virga.function(pool="cpu")
def abort():
    print("last words")
    os.abort()
class Own(Exception):
    def __init__(self, a, b):
        super().__init__(a)
@virga.function(pool="cpu")
def odd(): raise Own(1, 2)
@virga.function(pool="cpu")
def sleep(): time.sleep(600)
if __name__ == "__main__":
    for f in (hog, quit, abort):
        try:
            f.remote()
        except virga.TaskFailed as e:
            print(f.__name__, e.status, e.reason)
    try:
        odd.remote()
    except virga.RemoteError as e:
        print(e.type_name, e.message, "Own: 1" in e.traceback)
    call = sleep.spawn()
    while not call.task_id:
        time.sleep(0.01)
    virga.Task(call.task_id).cancel()
    try:
        call.result()
    except virga.TaskCancelled as e:
        print("cancelled", e.task_id == call.task_id)
    for bad in (dict(pool="nowhere"), dict(pool="cpu", cpus=3.999, mem="1T")):
        try:
            quit.with_options(**bad).remote()
        except virga.Refused as e:
            print("refused", len(str(e)) > 20)
    try:
        virga.function(pool="cpu")(lambda: call).remote()
    except virga.SerializationError as e:
        print("'call'" in str(e))
""")
    assert out == ("hog 137 it used more memory than its limit and was killed\nquit 4 None\nlast words\nabort 134 None\nOwn 1 True\n"
                   "cancelled True\nrefused True\nrefused True\nTrue\n")
    wait_quiet(sdk)


def test_functions_of_a_prompt_a_module_and_a_module_that_is_run(sdk):
    done = sdk.run([sys.executable], input=b"""
import dataclasses, virga
k = 2
@dataclasses.dataclass
class Point:
    x: int
def helper(p): return Point(p.x * k)
@virga.function(pool="cpu")
def f(p): return helper(p)
assert f.remote(Point(3)) == Point(6)
k = 5
assert f.remote(Point(3)) == Point(15)
print("fine")
""", check=0)
    assert done.stdout == b"fine\n", done.stderr
    package = sdk.work / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "funcs.py").write_text("import virga\nimport os\n@virga.function(pool='cpu')\ndef where(): return __name__, os.getcwd()\n")
    (package / "main.py").write_text("""
import os, virga
from .funcs import where
@virga.function(pool="cpu")
def name(): return __name__
if __name__ == "__main__":
    assert where.remote() == ("pack.funcs", os.getcwd())
    assert name.remote() == "__mp_main__"
    print("fine")
""")
    assert sdk.run([sys.executable, "-m", "pack.main"], check=0).stdout == b"fine\n"


def test_a_script_that_forgets_its_guard_is_told(sdk):
    (sdk.work / "forgets.py").write_text("""
import virga
@virga.function(pool="cpu")
def f(): return 1
f.remote()
if __name__ == "__main__":
    pass
""")
    done = sdk.run([sys.executable, "forgets.py"])
    assert done.returncode == 1 and b"put what starts things below 'if __name__" in done.stderr, done.stderr


def test_large_values_go_both_ways_at_once(sdk):
    out = script(sdk, """
import os, virga
@virga.function(pool="cpu", concurrency=2, mem="1G")
def turn(data): return data[::-1]
if __name__ == "__main__":
    items = [os.urandom(6 << 20) for _ in range(6)]
    assert [bytes(r) for r in turn.map(items)] == [i[::-1] for i in items]
    print("fine")
""")
    assert out == "fine\n"


def test_what_is_asked_for_by_keyword_is_what_the_task_has(sdk):
    sdk.virga("secret", "set", "API_KEY", input=b"hush-8431", check=0)
    out = script(sdk, """
import os, virga
@virga.function(pool="cpu", name="asked", labels={"a": "b"}, secrets=["API_KEY"], env={"X": "y"}, project="vision", priority=40, time_limit="5m",
                cpus=0.25, mem="200M", idle=0)
def f(): return os.environ["VIRGA_TASK_ID"], os.environ["API_KEY"][:4], os.environ["X"]
if __name__ == "__main__":
    task, secret, x = f.remote()
    t = virga.Task(task).info()
    print(secret, x, t["name"], t["labels"]["a"], t["priority"], t["want"]["cpu_milli"], t["want"]["mem_bytes"] >> 20, t["time_limit_usec"] // 10**6)
    virga.run(["sh", "-c", "test $API_KEY = hush-8431"], secrets=["API_KEY"], check=True, max_cost=5, project="vision")
    virga.submit(["true"], project="vision", preemptible=True, retries=1, key="once-only").result()
""")
    assert out == "hush y asked b 40 250 200 300\n"


def test_many_functions_and_threads_share_a_worker(sdk):
    """Each of a thousand closures is a function of its own; neither side keeps them all."""
    out = script(sdk, """
import concurrent.futures as cf
import virga
with virga.Executor(pool="cpu", max_workers=1) as ex:
    def ask(n):
        k = [n]
        return ex.submit(lambda: k[0] * 2).result()
    with cf.ThreadPoolExecutor(20) as threads:
        assert list(threads.map(ask, range(1000))) == [2 * n for n in range(1000)]
    pool = ex._pool
    print(len(pool.functions) <= 64, pool.started, pool.defined)
""")
    assert out == "True 1 1000\n"


def test_methods_take_their_object_along(sdk):
    out = script(sdk, """
import virga
class Model:
    def __init__(self, k): self.k = k
    @virga.function(pool="cpu", concurrency=1)
    def scale(self, x): return x * self.k
if __name__ == "__main__":
    m = Model(3)
    print(m.scale.remote(5), m.scale(6), list(Model(2).scale.map([1, 2])), Model.scale.pool().started)
""")
    assert out == "15 18 [2, 4] 1\n"


def test_what_is_awaited_and_cancelled_is_cancelled_there(sdk):
    out = script(sdk, """
import asyncio, time, virga
@virga.function(pool="cpu")
def nap(): time.sleep(600)
async def main():
    for what in (nap.aio(), virga.arun(["sleep", "600"], pool="cpu")):
        task = asyncio.ensure_future(what)
        while not [t for t in virga._programs.virga_json("task", "list") if t["state"] == "running"]:
            await asyncio.sleep(0.02)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled")
        while virga._programs.virga_json("task", "list"):
            await asyncio.sleep(0.02)
asyncio.run(main())
""")
    assert out == "cancelled\ncancelled\n"


def test_functions_call_functions(sdk):
    out = script(sdk, """
import virga
@virga.function(pool="default", concurrency=2)
def inner(x): return x + 1
@virga.function(pool="default")
def outer(x): return sum(inner.map(range(x)))
if __name__ == "__main__":
    print(outer.remote(4))
""")
    assert out == "10\n"


# ---------------------------------------------------------------------- notebooks


NOTEBOOK = r"""
import sys, virga
class Shell:  # what IPython offers to extensions, as far as it is used
    def __init__(self): self.user_ns, self.magics = {"__name__": "__main__"}, {}
    def register_magic_function(self, func, magic_kind, magic_name):
        assert magic_kind == "line_cell"
        self.magics[magic_name] = func
shell = Shell()
virga.load_ipython_extension(shell)
vrun, names = shell.magics["vrun"], shell.user_ns
exec("import threading\nk = 3\nlock = threading.Lock()\ndef triple(x): return x * k\nclass Box: pass", names)
vrun("-P cpu -e WHO=you sh -c 'echo hello $WHO'")
assert vrun("-P cpu", "y = triple(5)\ndef again(): return y\nbox = Box()\nprint('there')\ny + 1") == 16
assert names["y"] == 15 and names["again"]() == 15 and type(names["box"]) is names["Box"]
names["y"] = 7
assert names["again"]() == 7, "a function that came back has the notebook's globals"
vrun("-P cpu", "handle = open('/dev/null')")
assert "handle" not in names
assert vrun("-P cpu", "handle.name") == "/dev/null", "it is still there for the next cell"
for line, cell, error in (("-P cpu", "lock.acquire()", NameError), ("-P cpu", "1 / 0", ZeroDivisionError), ("-P cpu false", None, virga.TaskFailed),
                          ("--nope", None, virga.VirgaError), ("-P cpu true", "1", virga.VirgaError), ("", None, virga.VirgaError),
                          ("-P nowhere", "1", virga.Refused)):
    try:
        vrun(line, cell)
    except error as e:
        assert str(e)
    else:
        raise AssertionError((line, cell))
vrun("--sh -P cpu", "echo from a shell\ncat /dev/null")
"""


def test_magics(sdk):
    (sdk.work / "notebook.py").write_text(NOTEBOOK)
    done = sdk.run([sys.executable, "notebook.py"], check=0)
    assert done.stdout == b"hello you\nthere\nfrom a shell\n"
    assert b"cannot be sent and stays there: handle" in done.stderr and b"cannot be sent and stays here: lock" in done.stderr


def test_magics_in_ipython(sdk):
    if subprocess.run([sys.executable, "-c", "import IPython"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("IPython is not installed")
    out = script(sdk, r"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("%load_ext virga", "k = 4", "%vrun -P cpu echo hi {k}", "%%vrun -P cpu\nm = k * 2\nm + 1", "print(m, k)"):
    result = shell.run_cell(cell)
    assert result.success, cell
assert shell.user_ns["m"] == 8
""", "ipy.py")
    assert "hi 4" in out and "8 4" in out


# ---------------------------------------------------------------------- ends


SLEEPER = """
import sys, time
import virga
@virga.function(pool="cpu", name="sleeper")
def f(n):
    open(f"asleep-{n}", "w").close()
    time.sleep(600)
if __name__ == "__main__":
    try:
        list(f.map(range(100)))
    finally:
        print("left", flush=True)
"""


def asleep(cloud, n):
    return lambda: len([t for t in unfinished(cloud) if t["state"] == "running"]) == n and (cloud.work / f"asleep-{n - 1}").exists()


def forget_sleepers(cloud):
    for path in cloud.work.glob("asleep-*"):
        path.unlink()


def test_ctrl_c_at_a_terminal_leaves_no_task(sdk):
    forget_sleepers(sdk)
    (sdk.work / "sleeper.py").write_text(SLEEPER)
    with Terminal([sys.executable, "sleeper.py"], sdk.env, sdk.work) as t:
        wait_for("four workers to be at work", asleep(sdk, 4))
        t.send("\x03")
        t.expect("left")
        t.expect("KeyboardInterrupt")
        assert t.wait() == 130
    wait_quiet(sdk)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_is_killed_leaves_no_task(sdk, number):
    forget_sleepers(sdk)
    (sdk.work / "sleeper.py").write_text(SLEEPER)
    p = sdk.popen([sys.executable, "sleeper.py"])
    wait_for("four workers to be at work", asleep(sdk, 4))
    p.send_signal(number)
    p.communicate()
    wait_quiet(sdk)


def test_run_passes_ctrl_c_and_timeouts_on(sdk):
    out = script(sdk, """
import virga
try:
    virga.run(["sleep", "600"], timeout=0.5)
except TimeoutError as e:
    print(e)
""")
    assert "'sleep 600' had not ended after 0.5 s and was cancelled" in out
    (sdk.work / "runs.py").write_text("import virga\nvirga.run(['sleep', '600'])\n")
    with Terminal([sys.executable, "runs.py"], sdk.env, sdk.work) as t:
        wait_for("it to run", lambda: [x for x in unfinished(sdk) if x["state"] == "running"])
        t.send("\x03")
        t.expect("KeyboardInterrupt")
        t.wait()
    wait_quiet(sdk)


@pytest.mark.skipif(not LONG, reason="VIRGA_TEST_LONG=1: the same with other versions of Python")
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_other_versions_of_python(sdk, version):
    python = shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"there is no python{version}")
    for number, block in enumerate(BLOCKS):
        (sdk.work / "block.py").write_text(block)
        done = sdk.run([python, "block.py"])
        assert done.returncode == 0, (number, done.stderr.decode())
