#!/usr/bin/env python3
"""A notebook that holds a GPU and does nothing is ended by its pool's rule; one that computes now and then is not.

    bench/idle-notebook.py [--python PROGRAM] [--idle-end SECONDS]

Needs a node with a real card, root, and a Python with PyTorch (`--python`, default python3). Both notebooks are Python's
interactive prompt on a terminal, through `vrun --gpus 1`, each with 1 GiB on the card; one after the other. The second
gets a line to compute every few seconds, for three times as long as the first one lived. One JSON object a line; the
status is 0 when the first was ended for that reason and the second lived.
"""
import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))
from virga import Cloud, Terminal, wait_for  # noqa: E402

LOAD_S = 180  # PyTorch from a cold disk
HOLD = "import torch; x = torch.ones(1 << 28, device='cuda'); torch.cuda.synchronize(); print('held', x.numel() >> 18)\n"
WORK = "y = x[:1 << 24].view(4096, 4096); [torch.mm(y, y) for _ in range(60)]; torch.cuda.synchronize(); print('done', 6 * 7)\n"


def emit(**fields):
    print(json.dumps(fields), flush=True)


def prompt(cloud, python):
    t = Terminal(["vrun", "--gpus", "1", python, "-q", "-i"], cloud.env, cloud.work)
    t.expect(">>> ", LOAD_S)
    t.send(HOLD)
    t.expect(r"held 1024\r?\n", LOAD_S)
    return t


def idle(cloud, python, end_s):
    with prompt(cloud, python) as t:
        began = time.monotonic()
        t.expect("has not been used for", end_s + 60)
        warned = time.monotonic() - began
        t.expect("ended because its GPU was not used", end_s + 60)
        status = t.wait()
        lived = time.monotonic() - began
    emit(notebook="idle", warned_after_s=round(warned, 1), ended_after_s=round(lived, 1), status=status)
    return lived if status else None


def busy(cloud, python, seconds, pause):
    rounds, told = 0, False
    with prompt(cloud, python) as t:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            t.send(WORK)
            said = t.expect(r"done 42\r?\n", 60)
            told = told or b"has not been used" in said.string
            rounds += 1
            time.sleep(pause)
        use = wait_for("its task", lambda: [x for x in cloud.json("task", "list") if x["state"] == "running"])[0]
        use = cloud.task(use["id"])["gpu_usage"]
        t.send("exit()\n")
        status = t.wait()
    emit(notebook="busy", lived_s=round(seconds, 1), rounds=rounds, told=told, status=status,
         idle_s=round(use["idle_usec"] / 1e6, 1), sm_percent=use["sm_mean_milli"] / 1000)
    return status == 0


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--python", default="python3")
    args.add_argument("--idle-end", type=int, default=20)
    args = args.parse_args()
    end_s = args.idle_end
    cloud = Cloud(f"heartbeat: 1s\npools:\n  - name: default\n    idle_warn: {end_s // 2}s\n    idle_end: {end_s}s\n")
    try:
        cloud.up()
        cards = wait_for("the cards to be seen", lambda: (g := cloud.json("gpu", "list")) and g[0]["mem_bytes"] and g)
        emit(card=cards[0]["model"], driver=cards[0]["driver"], simulated=cards[0]["simulated"], idle_end_s=end_s)
        lived = idle(cloud, args.python, end_s)
        ok = lived is not None and busy(cloud, args.python, 3 * lived, end_s / 5)
        emit(held=bool(ok))
        return 0 if ok else 1
    finally:
        cloud.down()
        cloud.remove()


if __name__ == "__main__":
    sys.exit(main())
