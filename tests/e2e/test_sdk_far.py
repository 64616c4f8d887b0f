"""The Python package from a laptop, with nodes that are other machines and have none of its files."""
import os
import shutil
import textwrap

import pytest
from hosts import FAR_CONFIG, far_world
from virga import ROOT, wait_for

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE")


@pytest.fixture(scope="module")
def far():
    if not shutil.which("ip") or not shutil.which("nsenter"):
        pytest.skip("ip and nsenter are needed (tools/bootstrap test)")
    network = far_world(2, FAR_CONFIG.replace("15s", "6s"))  # a lost node's tasks go on elsewhere after a lease
    yield network
    network.control.virga("down")
    network.close()


@pytest.fixture(scope="module")
def laptop(far):
    """The package and a module of one's own, where only the laptop has them."""
    shutil.copytree(ROOT / "sdk/python/src/virga", far.laptop.work / "lib" / "virga", ignore=shutil.ignore_patterns("__pycache__"))
    (far.laptop.work / "lib" / "mine.py").write_text("def double(x): return 2 * x\n")
    far.laptop.env.update(PYTHONPATH=f"{far.laptop.inner}/lib", PYTHONDONTWRITEBYTECODE="1")
    return far.laptop


def script(laptop, text):
    (laptop.work / "script.py").write_text(textwrap.dedent(text))
    return laptop.run(["python3", "script.py"], check=0).stdout.decode()


def test_functions_find_the_laptops_files_and_modules(laptop):
    (laptop.work / "input").write_text("21")
    out = script(laptop, """
        import mine, os, virga
        @virga.function(concurrency=2)
        def f(n):
            with open("input") as file, open(f"output-{n}", "w") as result:
                result.write(str(mine.double(int(file.read())) + n))
            print("there", n)
            return n
        if __name__ == "__main__":
            assert list(f.map(range(6))) == list(range(6))
            print([open(f"output-{n}").read() for n in range(6)])
    """)
    assert out.splitlines()[-1] == "['42', '43', '44', '45', '46', '47']"
    assert sorted(out.splitlines()[:-1]) == [f"there {n}" for n in range(6)]


def test_large_values_both_ways_and_a_log_of_what_was_printed(far, laptop):
    out = script(laptop, """
        import os, virga
        @virga.function(concurrency=1, mem="512M", name="large")
        def turn(data):
            print("turning", len(data))
            return os.environ["VIRGA_TASK_ID"], data[::-1]
        if __name__ == "__main__":
            items = [os.urandom(5 << 20) for _ in range(3)]
            got = list(turn.map(items))
            assert [bytes(r) for _, r in got] == [i[::-1] for i in items]
            print(got[0][0])
    """)
    said, task = ["turning 5242880"] * 3, out.splitlines()[-1]
    assert out.splitlines()[:-1] == said
    wait_for("its end", lambda: far.control.json("task", "get", task)["state"] == "succeeded")
    assert far.control.out("virga", "task", "logs", task).splitlines() == said


def test_a_lost_node_s_call_runs_again_on_another(far, laptop):
    (laptop.work / "script.py").write_text(textwrap.dedent("""
        import os, time, virga
        @virga.function(concurrency=1)
        def f(folder):
            with open(f"begun-{len(os.listdir(folder))}", "w"):
                pass
            if not os.path.exists("go-on"):
                time.sleep(600)
            return "done"
        if __name__ == "__main__":
            print(f.remote("."))
    """))
    p = laptop.popen(["python3", "script.py"])
    wait_for("it to begin", lambda: list(laptop.work.glob("begun-*")))
    task = wait_for("it to run", lambda: [t for t in far.control.json("task", "list") if t["state"] == "running"])[0]
    node = next(n for n in far.nodes if n.name == task["node"])
    (laptop.work / "go-on").write_text("")
    node.stop_agent()
    out, err = p.communicate(timeout=120)
    assert out == b"done\n", err.decode()
