"""Starts programs that take memory of the card and kills each with SIGKILL at some moment: ROUNDS times, eight at once."""
import random
import subprocess
import sys
import time

rounds, program, seed = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng, running, ended = random.Random(seed), [], 0
while ended < rounds or running:
    while len(running) < 8 and ended + len(running) < rounds:
        way = rng.choice(["linear", "async", "vmm", "managed", "array", "contexts", "graph"])
        process = subprocess.Popen([program, "6144", way], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        running.append((time.monotonic() + rng.uniform(0, 1.2), process))
    running.sort(key=lambda r: r[0])
    until, process = running.pop(0)
    time.sleep(max(0, until - time.monotonic()))
    subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False, stderr=subprocess.DEVNULL)
    process.wait()
    ended += 1
print(ended)
