"""What Virga says of GPUs, shown on a real card; started by bench/gpu.sh. One JSON object a line.

    steps.py [--quick] [STEP...]      all steps, or those named; `--list` names them; `--quick`: less of each

A step that fails says so in its own line ("failed") and the next begins. Programs come from $VIRGA_BIN or build/bin,
those for the card from build/tests/gpu. Standard library only; the workloads beside this file need torch.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

from card import Card, Highest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.path.realpath(os.environ.get("VIRGA_BIN") or os.path.join(ROOT, "build", "bin"))
PYTHON = os.environ.get("PYTHON") or sys.executable
CAP_MIB = 4096
SERVER_MIB = 128  # of MPS's server itself, which is nobody's
QUICK = "--quick" in sys.argv

CONFIG = """
pools:
- name: whole
- name: part
  class: shared
- name: quick
  class: shared
  gpu_turn: 500us
- name: mps
  class: mps
- name: watched
  idle_warn: 5s
  idle_end: 10s
"""


def program(name):
    for folder in (BIN, os.path.join(ROOT, "build", "tests", "gpu")):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise SystemExit(f"{name} is not built")


def work(name):
    return os.path.join(HERE, name)


def emit(**fields):
    print(json.dumps(fields), flush=True)


class Cloud:
    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="vgg-", dir="/tmp")
        with open(os.path.join(self.home, "config.yaml"), "w", encoding="ascii") as f:
            f.write(CONFIG)
        self.env = {**{k: v for k, v in os.environ.items() if not k.startswith("VIRGA_")},
                    "VIRGA_HOME": self.home, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = self.run("virga", "up")
        if done.returncode:
            raise SystemExit("virga up: " + done.stderr)

    def run(self, *argv, timeout=300, **kw):
        return subprocess.run(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=timeout, check=False, **kw)

    def out(self, *argv, **kw):
        done = self.run(*argv, **kw)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: status {done.returncode}: {done.stdout[-300:]}{done.stderr[-600:]}")
        return done.stdout

    def json(self, *argv):
        return json.loads(self.out("virga", *argv, "-o", "json"))

    def start(self, *argv):
        return subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def named(self, name):
        return next(t for t in self.json("task", "list", "-a") if t["name"] == name)

    def pid(self, which):
        with open(os.path.join(self.home, "node/pid" if which == "agent" else "control/pid"), encoding="ascii") as f:
            return int(f.read().split()[0])

    def close(self):
        self.run("virga", "down")
        if not os.environ.get("VIRGA_KEEP_HOME"):
            shutil.rmtree(self.home, ignore_errors=True)


def share(pool, part, *more):
    return ["vrun", "-P", pool, "--gpus", str(part), *more]


def finished(process, what, seconds=180):
    out, err = process.communicate(timeout=seconds)
    if process.returncode:
        raise RuntimeError(f"{what}: status {process.returncode}: {out[-300:]}{err[-600:]}")
    return out


# ---------------------------------------------------------------------- steps: (cloud, card) -> fields


def smi(cloud, card):
    """`vrun --gpus 1 nvidia-smi` on a whole card, and what it says of a share."""
    whole = cloud.out("vrun", "-P", "whole", "--gpus", "1", "nvidia-smi", "-L").strip()
    part = cloud.out(*share("part", 0.25, "--gpu-mem", f"{CAP_MIB}M"), "nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader")
    return {"whole": whole, "share": part.strip(), "of_mib": CAP_MIB, "holds": f"{CAP_MIB} MiB" in part}


def train(cloud, card):
    """A training through vrun on a whole card against the same without Virga, one after the other, twice."""
    plain, ours = [], []
    for _ in range(1 if QUICK else 2):
        plain.append(float(cloud.out(PYTHON, work("train.py"), "400")))
        ours.append(float(cloud.out("vrun", "-P", "whole", "--gpus", "1", PYTHON, work("train.py"), "400")))
    ratio = statistics.median(ours) / statistics.median(plain)
    return {"plain_s": plain, "vrun_s": ours, "ratio": round(ratio, 4), "holds": ratio <= 1.01}


BARE = """
rm -rf usr/local/nvidia usr/local/cuda*/compat usr/bin/nvidia-* usr/lib/*/libcuda.so* usr/lib/*/libnvidia-* usr/lib64/libcuda.so*
mkdir -p .oldroot
"""


def far(cloud, card):
    """From another machine that has no file of the driver: its root is brought to the node, which has never seen it."""
    if not shutil.which("ip"):
        return {"skipped": "several hosts on one machine need the program ip"}
    sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
    import hosts  # pylint: disable=import-outside-toplevel

    hosts.LAPTOP = hosts.LAPTOP.replace("mkdir -p .oldroot\n", BARE, 1)
    world = hosts.far_world(config=hosts.FAR_CONFIG + CONFIG)
    try:
        laptop, seconds = world.laptop, []
        bare = laptop.run(["sh", "-c", "! ls /usr/local/nvidia && ! command -v nvidia-smi"]).returncode == 0
        smi = laptop.out("vrun", "-P", "whole", "--gpus", "1", "nvidia-smi", "-L")
        for _ in range(2):
            seconds.append(float(laptop.run(["vrun", "-P", "whole", "--gpus", "1", PYTHON, work("train.py"), "400"], timeout=300, check=0).stdout))
        told = laptop.out(*share("part", 0.5, "--gpu-mem", f"{CAP_MIB}M"), PYTHON, "-c", "import torch; print(torch.cuda.mem_get_info()[1] >> 20)", timeout=300)
    finally:
        world.close()
    plain = float(cloud.out(PYTHON, work("train.py"), "400"))
    ratio = seconds[-1] / plain
    return {"no_driver_there": bare, "nvidia_smi": smi, "vrun_s": seconds, "plain_s": plain, "ratio": round(ratio, 4), "share_told_mib": int(told),
            "holds": bare and ratio <= 1.01 and int(told) == CAP_MIB}


def ways_under_cap(cloud, card, pool):
    ways = []
    for way in ("linear", "pitch", "async", "pool", "vmm", "array", "mipmap", "managed", "globals", "stack", "contexts", "graph", "import"):
        with Highest(card) as highest:
            done = cloud.run(*share(pool, 0.5, "--gpu-mem", f"{CAP_MIB}M"), program("gpu-paths"), "12288", way)
        told = json.loads(done.stdout.splitlines()[0]) if done.stdout else {"status": done.returncode, "text": done.stderr[-300:]}
        ways.append({**told, "card_mib": highest.mib()})
    return ways, [w.get("way") for w in ways if w.get("error") != 2 and w.get("way") != "import"]


def cap(cloud, card):
    """Every way to memory under a cap, by the card's own count from outside."""
    ways, wrong = ways_under_cap(cloud, card, "part")
    most = max(w["card_mib"] for w in ways)
    return {"cap_mib": CAP_MIB, "ways": ways, "most_mib": most, "not_out_of_memory": wrong, "holds": most <= CAP_MIB and not wrong}


def race(cloud, card):
    """Eight processes at once under one cap."""
    ways = "linear vmm async managed array linear vmm graph".split()
    script = " & ".join(f"{program('gpu-paths')} 12288 {way}" for way in ways) + " & wait"
    with Highest(card) as highest:
        done = cloud.run(*share("part", 0.5, "--gpu-mem", f"{CAP_MIB}M"), "sh", "-c", script)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {"cap_mib": CAP_MIB, "processes": len(told), "most_mib": highest.mib(), "looks": highest.looks, "told": told,
            "holds": highest.mib() <= CAP_MIB and len(told) == len(ways)}


def side(cloud, card):
    """Programs that go around the library: one that clears its environment, one that loads the node's own library, one
    that is linked statically and speaks to the kernel itself."""
    paths = program("gpu-paths")
    real = "import glob; print(sorted(glob.glob('/run/virga/vgpu/real/*'))[:4])"
    fields, most = {}, 0
    for name, argv in (("environment", ["env", "-i", paths, "12288", "linear"]),
                       ("own_library", ["sh", "-c", f"LD_LIBRARY_PATH=/run/virga/vgpu/real exec {paths} 12288 linear"]),
                       ("static", [program("gpu-raw"), "12288"])):
        with Highest(card) as highest:
            done = cloud.run(*share("part", 0.5, "--gpu-mem", f"{CAP_MIB}M"), *argv)
        fields[name] = {"said": (done.stdout or done.stderr).strip()[-300:], "card_mib": highest.mib()}
        most = max(most, highest.mib())
    fields["real"] = cloud.run(*share("part", 0.5, "--gpu-mem", f"{CAP_MIB}M"), PYTHON, "-c", real).stdout.strip()
    fields["native_static"] = cloud.run(program("gpu-raw"), "5000").stdout.strip()
    return {"cap_mib": CAP_MIB, **fields, "most_mib": most, "holds": 256 < most <= CAP_MIB}


def oom(cloud, card):
    """PyTorch raises OutOfMemoryError under each allocator, and lives on."""
    told = []
    for conf in ("backend:native", "expandable_segments:True", "backend:cudaMallocAsync"):
        with Highest(card) as highest:
            said = cloud.out(*share("part", 0.5, "--gpu-mem", f"{CAP_MIB}M"), "env", f"PYTORCH_CUDA_ALLOC_CONF={conf}", PYTHON, work("oom.py"), conf)
        told.append({**json.loads(said), "card_mib": highest.mib()})
    return {"cap_mib": CAP_MIB, "told": told, "holds": all(t["error"] == "OutOfMemoryError" and t["lives_on"] and t["told_mib"] == CAP_MIB
                                                           and t["card_mib"] <= CAP_MIB for t in told)}


LOADS = {"plain": lambda s: [program("gpu-load"), str(s)], "graph": lambda s: [program("gpu-load"), str(s), "graph"],
         "torch": lambda s: [PYTHON, work("steady.py"), str(s)]}


def windows(outputs):
    """Seconds that all of them have whole, from the second on after the last began: a list of counts for each second."""
    told = [json.loads(o) for o in outputs]
    begin = max(t["from"] for t in told) + 3
    end = min(t["from"] + len(t["done"]) - 1 for t in told)
    return [[t["done"][second - t["from"]] for t in told] for second in range(begin, end)]


def shares(cloud, card):
    """Weights, second by second: how far each task's part of the work is from what it asked for."""
    rows, seconds = [], 10
    for kind, load in [("plain", LOADS["plain"])] if QUICK else LOADS.items():
        alone = [w[0] for w in windows([cloud.out(*share("part", 0.5, "--gpu-mem", "20G"), *load(6))])]
        solo = statistics.median(alone)
        for parts in ((0.3, 0.7), (0.1, 0.9), (0.166, 0.333, 0.5))[:1 if QUICK else 3]:
            running = [cloud.start(*share("part", p, "--gpu-mem", "20G"), *load(seconds)) for p in parts]
            seen = windows([finished(r, kind) for r in running])
            asked = [100 * p / sum(parts) for p in parts]
            got = [[100 * n / sum(w) for n in w] for w in seen]
            off = [max(abs(g - a) for g, a in zip(w, asked)) for w in got]
            rows.append({"load": kind, "asked": [round(a, 1) for a in asked], "mean": [round(statistics.mean(w[i] for w in got), 2) for i in range(len(parts))],
                         "windows": len(seen), "worst_points": round(max(off), 2), "total_of_solo": round(statistics.median(sum(w) for w in seen) / solo, 4)})
            emit(step="shares", **rows[-1])
    return {"rows": len(rows), "worst_points": max(r["worst_points"] for r in rows), "least_total": min(r["total_of_solo"] for r in rows),
            "holds": all(r["worst_points"] <= 1 and r["total_of_solo"] >= 0.95 for r in rows)}


def latency(cloud, card):
    """A request of 200 us beside a task that always wants the card, in a pool of short turns."""
    load, small = program("gpu-load"), ["small"]
    told = json.loads(cloud.out(*share("quick", 0.5, "--gpu-mem", "4G"), load, "3", *small))
    rounds = str(int(20000 * 200 / told["p50_us"]))
    alone = json.loads(cloud.out(*share("quick", 0.5, "--gpu-mem", "4G"), load, "4", "small", rounds))
    solo = statistics.median(w[0] for w in windows([cloud.out(*share("quick", 0.5, "--gpu-mem", "4G"), load, "6")]))
    fields = {}
    for pool in ("part", "quick"):
        hog = cloud.start(*share(pool, 0.5, "--gpu-mem", "4G"), load, "12")
        time.sleep(3)
        beside = json.loads(cloud.out(*share(pool, 0.5, "--gpu-mem", "4G"), load, "6", "small", rounds))
        kept = [w[0] for w in windows([finished(hog, "hog")])]
        fields[pool] = {**beside, "hog_of_solo": round(statistics.median(kept) / solo, 3)}
    return {"alone": alone, **fields, "holds": fields["quick"]["p99_us"] <= 600}


def weight(cloud, card):
    """A share that is changed while its task runs: the second after which the parts are what was asked."""
    a = cloud.start(*share("part", 0.5, "--gpu-mem", "8G", "--name", "first"), program("gpu-load"), "16")
    b = cloud.start(*share("part", 0.5, "--gpu-mem", "8G", "--name", "second"), program("gpu-load"), "16")
    time.sleep(7)
    at = time.time()
    cloud.out("virga", "task", "share", str(cloud.named("first")["id"]), "--gpus", "0.1")
    told = [json.loads(finished(x, "load")) for x in (a, b)]
    asked, seen = 100 * 0.1 / 0.6, []
    for second in range(int(at) - 2, int(at) + 5):
        n = [t["done"][second - t["from"]] for t in told]
        seen.append([round(second - at, 2), round(100 * n[0] / sum(n), 1)])
    after = [p for s, p in seen if s >= 1]
    return {"asked": [50, round(asked, 1)], "seconds_and_part": seen, "holds": bool(after) and all(abs(p - asked) <= 1 for p in after)}


def decode(cloud, card):
    """Many small kernels, alone on the card under a share, against the same without Virga; twice, one after the other."""
    plain, ours = [], []
    for _ in range(1 if QUICK else 2):
        plain.append(json.loads(cloud.out(PYTHON, work("decode.py"), "4")))
        ours.append(json.loads(cloud.out(*share("part", 0.5, "--gpu-mem", "20G"), PYTHON, work("decode.py"), "4")))
    ratio = {kind: statistics.median(sum((o[kind] for o in ours), [])) / statistics.median(sum((p[kind] for p in plain), [])) for kind in ("graph", "eager")}
    return {"plain_tokens_s": plain, "share_tokens_s": ours, "ratio": {k: round(r, 4) for k, r in ratio.items()}, "holds": ratio["graph"] >= 0.97}


def kill9(cloud, card):
    """500 programs that take memory, killed at any moment, in four tasks; then each task must still have its whole share."""
    before, rounds = card.used(), 25 if QUICK else 125
    tasks = [cloud.start(*share("part", 0.2, "--gpu-mem", f"{CAP_MIB}M", "--name", f"storm{i}"), "sh", "-c",
                         f"{PYTHON} {work('storm.py')} {rounds} {program('gpu-paths')} {i} && nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"
                         f" && {program('gpu-paths')} 12288 linear") for i in range(4)]
    with Highest(card) as highest:
        told = [finished(t, "storm", 500).splitlines() for t in tasks]
    end = time.monotonic() + 10
    while card.used() > before and time.monotonic() < end:
        time.sleep(0.1)
    ended, left, steps = [int(t[0]) for t in told], [int(t[1]) for t in told], [json.loads(t[2])["steps"] for t in told]
    return {"rounds": sum(ended), "used_after_mib": left, "blocks_of_256_after": steps, "most_mib": highest.mib(), "card_left_bytes": card.used() - before,
            "holds": sum(ended) == 4 * rounds and not any(left) and card.used() <= before and highest.mib() <= 4 * CAP_MIB and len(set(steps)) == 1}


def joules(cloud, card):
    """The energy of three sharers of very unlike use, against the card's own counter."""
    begin = card.energy_mj()
    parts = ((0.5, ["sh", "-c", f"{program('gpu-load')} 20"]), (0.3, ["sh", "-c", f"sleep 5; {program('gpu-load')} 10 graph"]), (0.1, ["sleep", "22"]))
    running = [cloud.start(*share("part", p, "--gpu-mem", "8G", "--name", f"energy{i}"), *argv) for i, (p, argv) in enumerate(parts)]
    for r in running:
        finished(r, "load")
    end = card.energy_mj()
    time.sleep(2)
    told = [cloud.json("task", "get", str(cloud.named(f"energy{i}")["id"])) for i in range(len(parts))]
    each = [t["gpu_usage"]["energy_mj"] / 1000 for t in told]
    ratio = sum(each) / ((end - begin) / 1000)
    return {"counter_j": (end - begin) / 1000, "tasks_j": each, "sum_of_counter": round(ratio, 4), "holds": abs(ratio - 1) <= 0.02}


def idle(cloud, card):
    """A notebook that holds the card and does nothing is told, then ended; one that computes now and then is not."""
    fields = {}
    for kind, seconds in (("busy", 20), ("idle", 60)):
        done = cloud.run("vrun", "-P", "watched", "--gpus", "1", PYTHON, work("notebook.py"), kind, str(seconds))
        fields[kind] = {"status": done.returncode, "out": done.stdout.split("\n")[-2:], "told": done.stderr.strip().splitlines()[-3:]}
    return {**fields, "holds": fields["busy"]["status"] == 0 and fields["idle"]["status"] != 0 and any("idle" in t or "used" in t for t in fields["idle"]["told"])}


def mps_ways(cloud, client, whole):
    """What programs that do not want their share of the multiprocessors get of them."""
    fields = {}
    for name, env in (("as_given", []), ("empty_environment", ["env", "-i"]), ("asks_for_all", ["env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"]),
                      ("looks_elsewhere", ["env", "CUDA_MPS_PIPE_DIRECTORY=/nowhere"])):
        done = cloud.run(*share("mps", 0.25), *env, *client)
        fields[name] = {**json.loads(done.stdout or "{}"), "status": done.returncode, "text": done.stderr.strip()[-200:]}
    held = [fields[n].get("multiprocessors", whole) <= whole / 4 for n in ("as_given", "empty_environment", "asks_for_all")]
    return {**fields, "holds": all(held) and fields["looks_elsewhere"]["status"] != 0 and "MPS" in fields["looks_elsewhere"]["text"]}


def mps_fate(cloud, client):
    """Two tasks beside one whose program fails: both end, with the reason, and the next one works."""
    beside = [cloud.start(*share("mps", 0.25), *client, "hold") for _ in range(2)]
    for b in beside:
        b.stdout.readline()
    at = time.monotonic()
    error = json.loads(cloud.run(*share("mps", 0.25), *client, "fault").stdout or "{}").get("error")
    told = [b.communicate(timeout=60)[1].strip()[-200:] for b in beside]
    took = round(time.monotonic() - at, 1)
    after = cloud.run(*share("mps", 0.25), *client).returncode
    return {"error": error, "told": told, "took_s": took, "after": after, "holds": error == 700 and all("brought down" in t for t in told) and after == 0}


def mps(cloud, card):
    """Class mps: multiprocessors and memory of programs that want more, parts of the work at the same time, one fate."""
    client, load = [PYTHON, work("client.py")], program("gpu-load")
    whole = json.loads(cloud.out("vrun", "-P", "whole", "--gpus", "1", *client))["multiprocessors"]
    fields = {"multiprocessors": whole, "ways": mps_ways(cloud, client, whole), "fate": mps_fate(cloud, client)}
    ways, wrong = ways_under_cap(cloud, card, "mps")
    fields["cap"] = {"cap_mib": CAP_MIB, "most_mib": max(w["card_mib"] for w in ways), "ways": ways, "not_out_of_memory": wrong}
    solo = statistics.median(w[0] for w in windows([cloud.out("vrun", "-P", "whole", "--gpus", "1", load, "6")]))
    running = [cloud.start(*share("mps", p), load, "11") for p in (0.3, 0.7)]
    seen = windows([finished(r, "load") for r in running])
    fields["shares"] = {"asked": [30, 70], "mean": [round(statistics.mean(100 * w[i] / sum(w) for w in seen), 2) for i in range(2)],
                        "total_of_solo": round(statistics.median(sum(w) for w in seen) / solo, 4)}
    fields["holds"] = (fields["ways"]["holds"] and fields["fate"]["holds"] and fields["cap"]["most_mib"] <= CAP_MIB + SERVER_MIB
                       and abs(fields["shares"]["mean"][0] - 30) <= 2)
    return fields


def watcher(cloud, card):
    """What looking at the card costs while a task holds it: processor time of the watching process and of the agent."""
    hold = cloud.start("vrun", "-P", "whole", "--gpus", "1", program("gpu-load"), "45")
    time.sleep(5)
    agent = cloud.pid("agent")
    children = subprocess.run(["pgrep", "-P", str(agent), "-f", "gpu-watch"], stdout=subprocess.PIPE, text=True, check=False).stdout.split()

    def ticks(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return int(words[11]) + int(words[12])

    watched = [int(c) for c in children] + [agent]
    begin, at = [ticks(p) for p in watched], time.monotonic()
    time.sleep(25)
    took = time.monotonic() - at
    percent = [round(100 * (ticks(p) - b) / os.sysconf("SC_CLK_TCK") / took, 3) for p, b in zip(watched, begin)]
    hold.terminate()
    hold.wait()
    return {"looked_s": round(took, 1), "watcher_percent": percent[:-1], "agent_percent": percent[-1], "holds": bool(percent[:-1]) and percent[0] < 0.1}


STEPS = {f.__name__: f for f in (smi, train, far, cap, race, side, oom, shares, latency, weight, decode, kill9, joules, idle, mps, watcher)}


def main():
    wanted = [a for a in sys.argv[1:] if a != "--quick"] or list(STEPS)
    if wanted == ["--list"]:
        for name, step in STEPS.items():
            print(f"{name:10} {' '.join(step.__doc__.split())}")
        return
    card = Card()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()
    emit(what="virga on a real card", date=time.strftime("%Y-%m-%d"), card=card.name(), driver=card.driver(), kernel=os.uname().release,
         commit=os.environ.get("COMMIT") or commit)
    cloud = Cloud()
    try:
        for name in wanted:
            begin = time.monotonic()
            try:
                fields = STEPS[name](cloud, card)
            except Exception as e:  # the others still have something to show
                fields = {"failed": f"{type(e).__name__}: {e}"[:1000], "at": traceback.extract_tb(e.__traceback__)[-1].lineno}
            emit(step=name, seconds=round(time.monotonic() - begin, 1), **fields)
    finally:
        cloud.close()


if __name__ == "__main__":
    main()
