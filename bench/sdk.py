"""What bench/run sdk runs: the Python package beside concurrent.futures' own processes on this machine. One JSON object a line.

    bench/sdk.py [--quick]      VIRGA_HOME names the cloud; PYTHONPATH has the package, in the folder this runs in

Both have as many workers, and do nothing in a call but return: what is measured is the way there and back. Rounds are interleaved.
"""
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time

import virga

WORKERS = 2


def echo(x):
    return x


def median(values):
    return sorted(values)[len(values) // 2]


def timed(what):
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def emit(**fields):
    print(json.dumps({"bench": "sdk", **fields}), flush=True)


def local():
    return concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))


def first_answer(make):
    """From nothing to one answer, and everything gone again."""
    with make() as ex:
        return timed(lambda: ex.submit(echo, 1).result())


def measure(ex, calls, items):
    list(ex.map(echo, range(4 * WORKERS)))
    data = bytes(8 << 20)
    return {
        "call_us": median([timed(lambda: ex.submit(echo, 1).result()) for _ in range(calls)]) * 1e6,
        "items": items / timed(lambda: list(ex.map(echo, range(items)))),
        "mib": 16 / median([timed(lambda: ex.submit(echo, data).result()) for _ in range(5)]),
    }


def main():
    quick = "--quick" in sys.argv
    calls, items, rounds = (100, 500, 1) if quick else (300, 3000, 3)
    makers = {"virga": lambda: virga.Executor(max_workers=WORKERS), "processes": local}
    firsts = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            firsts[name].append(first_answer(make))
    got = {}
    for _ in range(rounds):
        for name, make in makers.items():
            with make() as ex:
                for key, value in measure(ex, calls, items).items():
                    got.setdefault((name, key), []).append(value)
    for name in makers:
        emit(peer=name, workers=WORKERS, first_answer_ms=round(median(firsts[name]) * 1e3, 1), call_us=round(median(got[name, "call_us"])),
             map_items_s=round(median(got[name, "items"])), both_ways_mib_s=round(median(got[name, "mib"])))
    begin = time.perf_counter()
    single = virga.function(idle=0.0)(echo)
    starts = []
    for _ in range(3 if quick else 10):
        starts.append(timed(lambda: single.remote(1)))
        single.close()
    emit(peer="virga", remote_cold_ms=round(median(starts) * 1e3, 1), rounds=len(starts), seconds=round(time.perf_counter() - begin, 1))
    bare = [timed(lambda: os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"])) for _ in range(5)]
    emit(peer="python", start_ms=round(median(bare) * 1e3, 1))


if __name__ == "__main__":
    main()
