"""A command in an environment, on another machine, with the project of the one it was typed on: the root is the
environment's, the working folder is written back as ever."""
import os
import shutil

import oci
import pytest
from hosts import far_world
from test_env import rootfs  # noqa: F401  (a fixture)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts need root"),
    pytest.mark.skipif(not shutil.which("ip") or not shutil.which("nsenter"),
                       reason="ip and nsenter are needed (tools/bootstrap test)"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this kernel has no FUSE"),
]


@pytest.fixture(scope="module")
def far(rootfs):  # noqa: F811
    network = far_world()
    oci.Image([oci.layer(rootfs)], {"WorkingDir": "/srv", "Env": ["A=image"]}).write_layout(str(network.laptop.work / "layout"))
    yield network
    network.control.virga("down")
    network.close()


def test_the_project_goes_along_and_comes_back(far):
    laptop, project = far.laptop, far.laptop.inner
    (laptop.work / "in").write_text("written at home\n")
    r = laptop.vrun("-q", "--image", f"{project}/layout", "tool", "in", "+out", "/etc/hello")
    assert r.returncode == 7, (r.stdout, r.stderr)
    assert f"cwd={project} A=image".encode() in r.stdout, r.stdout
    assert r.stdout.endswith(b"written at home\nhello\n"), r.stdout
    assert (laptop.work / "out").exists(), "what it wrote is here when vrun returns"
    # edited here, seen there; what the environment has is its own, and what is only here is not there
    for n in range(3):
        (laptop.work / "in").write_text(f"edit {n}\n")
        r = laptop.vrun("-q", "--image", f"{project}/layout", "tool", "in", f"+out{n}")
        assert r.returncode == 7 and r.stdout.endswith(f"edit {n}\n".encode()), (r.stdout, r.stderr)
        assert (laptop.work / f"out{n}").exists()
    r = laptop.vrun("-q", "--image", f"{project}/layout", "tool", "/opt/only-here/file")
    assert r.returncode == 9, "the root is the environment's"
    (laptop.work / "sub").mkdir()
    r = laptop.run(["vrun", "-q", "--image", f"{project}/layout", "-C", "sub", "tool", "+deep"])
    assert r.returncode == 7 and (laptop.work / "sub/deep").exists(), (r.stdout, r.stderr)


def test_a_script_of_the_project_runs_in_a_saved_environment(far, rootfs):  # noqa: F811
    laptop = far.laptop
    laptop.virga("env", "import", f"{laptop.inner}/layout", "-n", "tools", check=0)
    script = laptop.work / "train"
    script.write_text("#!/bin/tool in\n")
    script.chmod(0o755)
    (laptop.work / "in").write_text("data\n")
    r = laptop.vrun("--env", "tools", "./train")
    assert r.returncode == 7 and b"data\n" in r.stdout, (r.stdout, r.stderr)


def test_what_belongs_to_the_environment_is_not_covered(far):
    laptop = far.laptop
    laptop.virga("env", "import", f"{laptop.inner}/layout", "-n", "own", check=0)
    r = laptop.run(["vrun", "--env", "own", "-C", "/usr/share", "tool", "/etc/hello"])
    assert b"does not go along" in r.stderr, r.stderr
    # nobody waits for a batch task: it has the environment alone, and begins where the image says
    r = laptop.run(["vbatch", "-f", "--env", "own", "tool", "/etc/hello"])
    assert r.returncode == 7 and b"cwd=/srv" in r.stdout, (r.stdout, r.stderr)
