"""Fixtures of the end-to-end suites. `cloud` is fresh for every module, comes up with `virga up` and goes
down with `virga down`, after which nothing of it may be left on the machine."""
import os
import shutil
import signal
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from hosts import FarNode, far_world  # noqa: E402
from virga import BIN, Cloud  # noqa: E402

# A run that was begun in the background may have been told to ignore these, and all it starts with it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    why = None
    if os.geteuid() != 0:
        why = "sandboxes need root"
    elif not (BIN / "virga").exists() or not (BIN / "virgad").exists():
        why = f"there are no programs in {BIN}: run make first"
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure is shown with what the programs said last."""
    report = (yield).get_result()
    if report.failed and hasattr(report.longrepr, "addsection"):
        for cloud in sorted(Cloud.made, key=lambda c: str(c.home)):
            said = cloud.logs(8) if cloud.home.exists() else ""
            if said:
                report.longrepr.addsection(f"logs of {getattr(cloud, 'name', cloud.home)}", said)


def close_cloud(cloud):
    """Takes a cloud down and says what it left."""
    done = cloud.down()
    left = cloud.leftovers()
    logs = cloud.logs()
    cloud.kill_leftovers()
    cloud.remove()
    assert done.returncode == 0, f"virga down: {done.stderr.decode(errors='replace')}\n{logs}"
    assert not left, "virga down left behind:\n  " + "\n  ".join(left) + "\n" + logs


@pytest.fixture(scope="module")
def cloud(request):
    """One cloud a module; a module may set CONFIG to a config.yaml of its own."""
    cloud = Cloud(config=getattr(request.module, "CONFIG", None))
    try:
        cloud.up()
    except BaseException:
        cloud.kill_leftovers()
        cloud.remove()
        raise
    yield cloud
    close_cloud(cloud)


@pytest.fixture
def make_cloud():
    """Clouds for one test: make_cloud(config) gives one that is not up yet."""
    made = []

    def make(config=None, env=None):
        cloud = Cloud(config, env)
        made.append(cloud)
        return cloud

    yield make
    for cloud in made:
        close_cloud(cloud)


@pytest.fixture(scope="module")
def far(request):
    """A control plane, nodes and a laptop with a root of its own, one a module, which may say how many NODES of which KIND."""
    if not shutil.which("ip") or not shutil.which("nsenter"):
        pytest.skip("ip and nsenter are needed (tools/bootstrap test)")
    network = far_world(getattr(request.module, "NODES", 1), kind=getattr(request.module, "KIND", FarNode))
    try:
        yield network
        network.control.virga("down")
    finally:
        network.close()
