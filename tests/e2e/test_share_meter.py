"""What sharers of one simulated card are told of its energy: to the millijoule what its counter says, by what their processes did."""
import json
import os

import pytest
from simulated import Driver
from virga import Cloud, pids, read_bytes, wait_for

CONFIG = """
heartbeat: 500ms
pools:
  - name: default
    class: shared
"""


@pytest.fixture(scope="module")
def cloud():
    cloud = Cloud(CONFIG)
    driver = Driver(cloud)
    try:
        cloud.up("--gpus", "fake:1")
        yield cloud
    finally:
        cloud.remove()
        driver.close()


def say(cloud, **words):
    """`procs`: (pid, part of the SMs' time) of each. They have no memory: the warden knows of none, and ends whoever has more."""
    procs = words.pop("procs", [])
    lines = [f"{k} {v}\n" for k, v in words.items()] + [f"proc {p} {sm} 0\n" for p, sm in procs]
    folder = cloud.home / "node" / "fake-gpus"
    folder.mkdir(exist_ok=True)
    (folder / ".0").write_text("".join(lines))
    (folder / ".0").rename(folder / "0")


def card(cloud):
    return json.loads(cloud.out("virga", "gpu", "top", "-o", "json"))[0]  # has it looked at each second


def command_pid(word):
    found = [p for p in pids() if read_bytes(f"/proc/{p}/cmdline") == b"sleep\0" + word.encode() + b"\0"]
    return found[0] if found else None


def test_sharers_pay_what_the_counter_says_by_what_they_did(cloud):
    say(cloud, power=0)  # the counter stands while they come and go
    wait_for("a card that draws nothing", lambda: card(cloud)["power_mw"] == 0)
    words = [f"{os.getpid()}{i}" for i in range(2)]  # by which nobody else's are found
    tasks = [cloud.out("vbatch", "--gpus", part, "--gpu-mem", "1G", "sleep", word) for part, word in zip(("0.3", "0.5"), words)]
    for task in tasks:
        cloud.wait_state(task, "running")
        wait_for("its first sample", lambda: (u := cloud.task(task)["gpu_usage"]) and u["sampled_usec"])
    first = card(cloud)["energy_mj"]
    procs = [(wait_for("the command", lambda: command_pid(word)), sm) for word, sm in zip(words, (60, 20))]
    say(cloud, power=800000, sm=80, mem=500 << 20, procs=procs)
    wait_for("whose processes they are", lambda: {p["task"] for p in card(cloud)["processes"]} == set(tasks))
    g = wait_for("the power of each", lambda: (g := card(cloud)) and all(h["usage"] and h["usage"]["power_mw"] for h in g["holders"]) and g)
    assert {h["task"] for h in g["holders"]} == set(tasks) and g["energy_mj"] > first
    say(cloud, power=0, sm=80, mem=500 << 20, procs=procs)
    wait_for("a card that draws nothing", lambda: card(cloud)["power_mw"] == 0)
    cloud.virga("task", "cancel", *tasks, check=0)
    used = [cloud.wait_state(task, "cancelled")["gpu_usage"] for task in tasks]
    drew = card(cloud)["energy_mj"] - first
    assert drew > 800 * 1000
    assert sum(u["energy_mj"] for u in used) == drew
    assert abs(used[0]["energy_mj"] - drew * 3 / 4) < drew / 100, "three quarters of the use were its own, whatever it was promised"
    assert [u["mem_peak_bytes"] for u in used] == [0, 0], "its own, not the card's"
