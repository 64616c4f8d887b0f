#!/usr/bin/env python3
"""Random changes on both machines at once: after each run the node shows what the client has.

    fresh.py [--seed N] [--ops N] [--cuts] [--restarts] [--trouble X] [--try PROGRAM]

The client changes things in its folder "theirs", the node in "ours", and the node looks at everything meanwhile. Now and then another
command begins: then both folders must be the same tree: kinds, modes, sizes, link counts, contents, targets, attributes, times.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from differential import FALLOCATE, Control, Side, Walk, can_allocate, differences, outcome, tree  # noqa: E402

# The kernel tells nobody of a mapping's pages before the file is closed, nor of what is written to an open file whose name of then is
# gone while it has another one.
UNTOLD = ("map", "link", "linkfd")
LOOKS = ("stat", "list", "readlink", "contents", "getxattr", "listxattr")


def same(ctl, view, client, when):
    said = ctl("barrier")
    for folder, dirs, files in os.walk(view):  # what nobody has looked at nobody watches: a second name of a file that
        for name in dirs + files:  # was made in such a folder is heard of now
            outcome(Side(folder), ("stat", name, False))
    ctl("run")
    bad = differences(tree(view, with_times=True), tree(client, with_times=True), f"{when}: view, client")
    if not said.startswith("0") or bad:
        print(f"{when}: barrier: {said}")
        return False
    return True


def work(args):
    ctl, view, client = Control(os.environ["CTL"]), os.environ["VIEW"], os.environ["CLIENT"]
    FALLOCATE[:] = can_allocate(os.path.dirname(client))
    os.umask(0o022)
    theirs, ours = Side(client + "/theirs"), Side(view + "/ours")
    far = Side(view + "/theirs")
    walks = [(theirs, Walk(args.seed, theirs.top)), (ours, Walk(args.seed + 1, ours.top))]
    r = random.Random(args.seed + 2)
    done = looked = 0
    for i in range(args.ops):
        side, walk = r.choice(walks)
        op = walk.next()
        if side is theirs and op[0] in UNTOLD:
            continue
        if side is theirs and op[0] in LOOKS:
            side = far  # what it finds is old or new
            looked += 1
        result = outcome(side, op)
        done += result[0] == "ok"
        if result[0] == "ok" and op[0] in ("open", "tmpfile"):
            walk.slots.add(op[1])
        if op[0] == "close":
            walk.slots.discard(op[1])
        if args.cuts and r.random() < 0.003 * args.trouble:
            ctl("cut")
        if args.restarts and r.random() < 0.0005 * args.trouble:
            ctl("restart")
        if (i + 1) % args.every == 0 and not same(ctl, view, client, f"seed {args.seed}, after {i + 1}"):
            return 1
    for side, walk in walks:
        for slot in sorted(walk.slots):
            side.close(slot)
    if not same(ctl, view, client, f"seed {args.seed}, at the end"):
        return 1
    notes = ctl("notes")
    if notes:
        print("notes:", notes)
        return 1
    print(f"{args.ops} operations, seed {args.seed}: {done} succeeded, {looked} were looks from afar, {len(tree(client))} things in the end")
    return 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--ops", type=int, default=5000)
    ap.add_argument("--every", type=int, default=100)
    ap.add_argument("--cuts", action="store_true")
    ap.add_argument("--restarts", action="store_true")
    ap.add_argument("--trouble", type=float, default=1)
    ap.add_argument("--try", dest="program")
    args = ap.parse_args()
    if "VIEW" in os.environ:
        return work(args)
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("mounting needs root and /dev/fuse")
        return 77
    top = tempfile.mkdtemp(prefix="virga-fresh-", dir="/var/tmp")
    try:
        for d in ("theirs/a", "theirs/b", "ours/a"):
            os.makedirs(f"{top}/client/p/{d}")
        return subprocess.run([args.program, top, sys.executable] + sys.argv).returncode
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
