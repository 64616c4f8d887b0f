"""Which cards a task gets, and what it finds beside them: near ones first, the CPUs of their socket, the node's adapters, the
way to the other members; and never a card, a part or an adapter that is not its own.

The cards are simulated. Their device nodes are real ones, with NVIDIA's numbers: behind the filter of the devices controller
there is no driver, so that what is allowed ends in ENXIO and what is not in EPERM."""
import json
import os
import resource
import socket
import stat

import pytest
from virga import Cloud, read_bytes, wait_for

CONFIG = """
lease: 20s
heartbeat: 500ms
pools:
  - name: default
  - name: host
    network: host
  - name: plain
    rdma: off
"""
ADAPTERS = ["infiniband/uverbs0", "infiniband/uverbs1", "infiniband/rdma_cm", "gdrdrv"]
CARDS = 4


def node(path, major, minor):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(root):
    """Four cards behind two switches, one on each socket; a CPU a socket; two adapters, one of them up."""
    for i in range(CARDS):
        put(root / str(i), f"switch {1 + i % 2}\nnuma {i % 2}\n")  # 0 and 2 are together, and 1 and 3
        node(root / "dev" / f"nvidia{i}", 195, i)
    for i, name in enumerate(["nvidiactl", "nvidia-uvm"]):
        node(root / "dev" / name, 195, 254 + i)
    for i, name in enumerate([*ADAPTERS, "infiniband/umad0"]):
        node(root / "dev" / name, 231, 192 + i)
    for i in range(2):
        put(root / "sys/class/infiniband_verbs" / f"uverbs{i}" / "ibdev", f"mlx5_{i}\n")
        put(root / "sys/class/infiniband" / f"mlx5_{i}" / "ports/1/state", "1: DOWN\n" if i else "4: ACTIVE\n")
        put(root / "sys/devices/system/node" / f"node{i}" / "cpulist", f"{i}\n")


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    build(cloud.home / "node" / "fake-gpus")
    cloud.up("--gpus", f"fake:{CARDS}")
    wait_for("the cards to be seen", lambda: [g["numa"] for g in cloud.json("gpu", "list")] == [0, 1, 0, 1])
    yield cloud
    cloud.down()
    cloud.remove()


LOOK = """
import errno, json, os, resource
def attempt(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as e:
        return errno.errorcode[e.errno]
    return "open"
def make(major, minor):
    try:
        os.mknod("/tmp/made", 0o600 | 0o020000, os.makedev(major, minor))
    except OSError as e:
        return errno.errorcode[e.errno]
    return "made"
found = [os.path.relpath(os.path.join(d, f), "/dev") for d, _, files in os.walk("/dev") for f in files]
print(json.dumps({"dev": [f for f in found if f.startswith(("nvidia", "infiniband", "gdr"))],
                  "open": {f: attempt("/dev/" + f) for f in found if f.startswith("nvidia")},
                  "make": [make(195, i) for i in range(4)],
                  "cpus": sorted(os.sched_getaffinity(0)), "env": dict(os.environ),
                  "memory": open("/proc/self/numa_maps").readline().split()[1] if os.path.exists("/proc/self/numa_maps") else None,
                  "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}))
"""


def look(cloud, *options, **kw):
    return json.loads(cloud.out("vrun", *options, "python3", "-c", LOOK, **kw))


@pytest.fixture(autouse=True)
def nothing_is_held(request):
    """What an earlier task held is given back a moment after it has ended."""
    for name in {"cloud", "parts"} & set(request.fixturenames):
        all_free(request.getfixturevalue(name))


def all_free(cloud, *tasks):
    if tasks:
        cloud.virga("task", "cancel", *tasks, check=0)
    wait_for("their cards to be free", lambda: {g["state"] for g in cloud.json("gpu", "list")} == {"free"})


def test_cards_say_how_near_they_are(cloud):
    near = [g["near"] for g in cloud.json("gpu", "list")]
    assert near == [[None, "SYS", "PIX", "SYS"], ["SYS", None, "SYS", "PIX"], ["PIX", "SYS", None, "SYS"], ["SYS", "PIX", "SYS", None]]


def test_two_cards_are_neighbours_and_one_breaks_up_no_pair(cloud):
    first = cloud.out("vbatch", "--gpus", "1", "sleep", "100")
    assert cloud.wait_state(first, "running")["gpus"] == [0]
    pair = cloud.out("vbatch", "--gpus", "2", "sleep", "100")
    assert cloud.wait_state(pair, "running")["gpus"] == [1, 3]
    last = cloud.out("vbatch", "--gpus", "1", "sleep", "100")
    assert cloud.wait_state(last, "running")["gpus"] == [2]
    all_free(cloud, first, pair, last)
    seen = look(cloud, "--gpus", "2")
    assert seen["open"].keys() == {"nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"}


def test_a_task_sees_its_own_card_and_no_other(cloud):
    holder = cloud.out("vbatch", "--gpus", "1", "sleep", "100")
    assert cloud.wait_state(holder, "running")["gpus"] == [0]
    seen = look(cloud, "--gpus", "1")
    assert seen["open"] == {"nvidia2": "ENXIO", "nvidiactl": "ENXIO", "nvidia-uvm": "ENXIO"}
    assert seen["make"] == ["EPERM"] * 4
    assert look(cloud)["dev"] == [], "without a card nothing of the driver is there"
    all_free(cloud, holder)


def open_in(group, path):
    """What becomes of an open by a process in this group: an errno, or 0. A process of its own, so that we stay outside."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as f:
                f.write("0")
            os.open(path, os.O_RDWR)
            os._exit(0)
        except OSError as e:
            os._exit(e.errno or 255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def device_group(pid):
    for line in read_bytes(f"/proc/{pid}/cgroup").decode().splitlines():
        number, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(",") or (number == "0" and not os.path.isdir("/sys/fs/cgroup/devices")):
            for top in ("/sys/fs/cgroup/devices", "/sys/fs/cgroup"):
                if os.path.isdir(top + path):
                    return top + path
    return None


def test_the_filter_holds_whoever_makes_the_node(cloud):
    """Root outside can make any node; in the task's group it still cannot open one."""
    gate = cloud.work / "gate"
    run = cloud.popen(["vrun", "--gpus", "1", "sh", "-c", f"echo here; until [ -e {gate} ]; do sleep 0.05; done"])
    assert run.stdout.readline() == b"here\n"
    task = wait_for("it to be known to run", lambda: [t["id"] for t in cloud.json("task", "list") if t["state"] == "running"])[0]
    own = cloud.task(task)["gpus"]
    cards = cloud.home / "node" / "fake-gpus" / "dev"
    inside = [p for p in os.listdir("/proc") if p.isdigit() and str(gate).encode() in read_bytes(f"/proc/{p}/cmdline")
              and read_bytes(f"/proc/{p}/cmdline").startswith(b"sh\0")]
    group = device_group(inside[0])
    assert group, "no group with a filter of devices"
    got = {i: open_in(group, cards / f"nvidia{i}") for i in range(CARDS)}
    assert got == {i: 6 if i in own else 1 for i in range(CARDS)}, "ENXIO for its own, EPERM for others"
    assert {open_in(group, cards / name) for name in ADAPTERS} == {6}
    assert open_in(group, cards / "infiniband/umad0") == 1
    gate.touch()
    assert run.wait(60) == 0
    run.communicate()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_cpus_of_its_socket_when_they_are_enough(cloud):
    for cards, cpus, want in ((1, "1", [0]), (1, "2", [0, 1]), (2, "0.5", [0])):
        all_free(cloud)
        seen = look(cloud, "--gpus", str(cards), "--cpus", cpus)
        assert seen["cpus"] == want, (cards, cpus)
        assert seen["memory"] in (None, "prefer" if want == [0] else "default"), "memory likewise, on kernels that know of it"
    assert len(look(cloud, "--gpus", "1")["cpus"]) > 1, "one that asks for no number may use all"
    all_free(cloud)
    first = cloud.out("vbatch", "--gpus", "1", "--cpus", "0.7", "sleep", "100")
    cloud.wait_state(first, "running")
    second = cloud.out("vbatch", "--gpus", "1", "--cpus", "0.7", "sleep", "100")
    cloud.wait_state(second, "running")

    def cpus_of(index):
        pid = wait_for("its process", lambda: [p for p in os.listdir("/proc") if p.isdigit() and read_bytes(f"/proc/{p}/cmdline") == b"sleep\x00100\x00"
               and (f"VIRGA_TASK_ID={(first, second)[index]}\0").encode() in read_bytes(f"/proc/{p}/environ")])
        return sorted(os.sched_getaffinity(int(pid[0])))
    assert [cloud.task(t)["gpus"] for t in (first, second)] == [[0], [2]], "one socket"
    assert cpus_of(0) == [0] and len(cpus_of(1)) > 1, "its CPU is nearly taken: the second may go elsewhere"
    all_free(cloud, first, second)


def test_adapters_for_whole_cards_where_the_pool_allows_it(cloud):
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]

    def little():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    seen = look(cloud, "--gpus", "1", preexec_fn=little)
    assert sorted(f for f in seen["dev"] if not f.startswith("nvidia")) == sorted(ADAPTERS)
    assert seen["locked"] in (-1, hard), "they need memory that stays where it is: as much as the node can allow"
    plain = look(cloud, "-P", "plain", "--gpus", "1", preexec_fn=little)
    assert not [f for f in plain["dev"] if not f.startswith("nvidia")]
    assert plain["locked"] == 65536


def test_visible_cards_are_named_in_the_order_of_the_bus(cloud):
    env = look(cloud, "--gpus", "4")["env"]
    uuids = [f"GPU-73696d75-6c61-7465-6400-{i:012x}" for i in range(4)]
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == ",".join(uuids)
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "NCCL_SOCKET_IFNAME" not in env, "who is alone needs no way to others"
    own = json.loads(cloud.out("env", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "vrun", "--gpus", "1", "python3", "-c", LOOK))
    assert own["env"]["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def member_env(cloud, *options, **env):
    task = cloud.out("vbatch", *options, "--gang", "-N", "2", "--gpus", "1", "env", env={**cloud.env, **env})
    cloud.wait_state(task, "succeeded")
    text = cloud.out("virga", "task", "logs", f"{task}.1")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_members_of_a_gang_know_the_way_to_each_other(cloud):
    env = member_env(cloud)
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert env["NCCL_IB_HCA"] == "=mlx5_0:1", "the adapter that is up"
    env = member_env(cloud, "-P", "host", NCCL_SOCKET_IFNAME="mine")
    assert env["NCCL_SOCKET_IFNAME"] == "mine", "what the person set stays"
    links = {name for _, name in socket.if_nameindex() if name != "lo" and not name.startswith(f"vg{cloud.tag}")}
    assert env.get("GLOO_SOCKET_IFNAME") in (links or {None}), "a link of the node's, where it has one"
    assert "NCCL_IB_HCA" not in member_env(cloud, "-P", "plain")


# ---------------------------------------------------------------------- parts of a card (MIG)

PARTS = """
lease: 20s
heartbeat: 500ms
pools:
  - name: default
  - name: slices
    class: mig
"""


@pytest.fixture(scope="module")
def parts():
    """One card that its administrator has cut in two, each of which has two capabilities."""
    cloud = Cloud(PARTS)
    root = cloud.home / "node" / "fake-gpus"
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255), ("nvidia-uvm", 254)):
        node(root / "dev" / name, 195, minor)
    node(root / "dev/infiniband/uverbs0", 231, 192)
    put(root / "sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
    for cap in range(1, 8):
        node(root / "dev/nvidia-caps" / f"nvidia-cap{cap}", 241, cap)
    mig = root / "proc/driver/nvidia/capabilities/gpu0/mig"
    for gi, cap in ((1, 3), (2, 5)):
        put(mig / f"gi{gi}" / "access", f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\n")
        put(mig / f"gi{gi}" / "ci0" / "access", f"DeviceFileMinor: {cap + 1}\nDeviceFileMode: 292\n")
    cloud.up("--gpus", "fake:1")
    wait_for("the parts to be seen", lambda: [g["mem_bytes"] for g in cloud.json("gpu", "list")] == [80 << 30] * 2)
    yield cloud
    cloud.down()
    cloud.remove()


def test_a_part_of_a_card_is_a_gpu_of_its_own(parts):
    common = {"nvidia0", "nvidiactl", "nvidia-uvm"}
    holder = parts.out("vbatch", "-P", "slices", "--gpus", "1", "sleep", "100")
    assert parts.wait_state(holder, "running")["gpus"] == [0]
    seen = look(parts, "-P", "slices", "--gpus", "1")
    assert set(seen["dev"]) == common | {"nvidia-caps/nvidia-cap5", "nvidia-caps/nvidia-cap6"}, "and no adapter, no other's part"
    assert set(seen["open"].values()) == {"ENXIO"}
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == parts.json("gpu", "list")[1]["uuid"] != ""
    all_free(parts, holder)
    both = look(parts, "-P", "slices", "--gpus", "2")
    assert set(both["dev"]) == common | {f"nvidia-caps/nvidia-cap{i}" for i in range(3, 7)}


def test_a_card_that_is_cut_is_not_given_whole(parts):
    done = parts.vrun("--gpus", "1", "true")
    assert done.returncode != 0 and "default" in done.stderr.decode(), done.stderr
    assert parts.out("vrun", "echo", "fine") == "fine", "who needs no GPU runs there as ever"
    pool = [p for p in parts.json("pool", "list") if p["name"] == "slices"][0]
    assert pool["class"] == "mig"


def test_a_card_in_mig_mode_without_parts_is_drained():
    cloud = Cloud(PARTS)
    try:
        put(cloud.home / "node" / "fake-gpus" / "1", "mig 1\n")
        cloud.up("--gpus", "fake:2")
        wait_for("the card to be drained", lambda: [g["state"] for g in cloud.json("gpu", "list")] == ["free", "drained"])
        assert "is in MIG mode: make its parts" in cloud.json("gpu", "list")[1]["reason"]
        assert cloud.vrun("--gpus", "1", "true").returncode == 0, "the other one serves"
        cloud.down()
    finally:
        cloud.remove()
