"""Dependencies: two hundred tasks that wait for each other and partly fail, against a model of the rules."""
import random

from virga import wait_for

N = 200
SEED = 7


def make_graph():
    """(exit status, [(kind, earlier node)]) of each node; only earlier ones can be named, so there is no circle."""
    rng = random.Random(SEED)
    nodes = []
    for i in range(N):
        status = rng.choice((0, 0, 0, 1))
        targets = rng.sample(range(i), min(i, rng.choice((0, 1, 1, 2, 3)))) if i else []
        nodes.append((status, [(rng.choice(("--after", "--after-success", "--after-fail")), t) for t in targets]))
    return nodes


def model(nodes):
    """The state that each must end in: a wish that can never come true cancels; what was cancelled has neither
    succeeded nor failed."""
    states = []
    for status, wishes in nodes:
        met = {"--after": lambda s: True, "--after-success": lambda s: s == "succeeded",
               "--after-fail": lambda s: s == "failed"}
        runs = all(met[kind](states[target]) for kind, target in wishes)
        states.append("cancelled" if not runs else "failed" if status else "succeeded")
    return states


def test_two_hundred_tasks_follow_the_rules_exactly(cloud):
    nodes = make_graph()
    ids = []
    for i, (status, wishes) in enumerate(nodes):
        # Every third is named by its name, the others by their ids.
        args = [part for kind, t in wishes for part in (kind, f"n{t}" if t % 3 == 0 else ids[t])]
        ids.append(cloud.out("vbatch", "-q", "-n", f"n{i}", "-l", "dag=yes", *args, "sh", "-c",
                             f"echo {i} >> order; exit {status}"))
    listed = lambda: {t["id"]: t for t in cloud.json("task", "list", "-a", "-l", "dag=yes", "--limit", "1000")}
    ended = ("succeeded", "failed", "cancelled")
    wait_for("every task to end", lambda: all(t["state"] in ended for t in listed().values()), 120)
    tasks = listed()
    want = model(nodes)
    got = [tasks[task]["state"] for task in ids]
    wrong = [(i, got[i], want[i], nodes[i]) for i in range(N) if got[i] != want[i]]
    assert not wrong, wrong[:5]
    assert {"succeeded", "failed", "cancelled"} <= set(want), "the graph is too tame to show anything"

    ran = [int(x) for x in (cloud.work / "order").read_text().split()]
    assert sorted(ran) == [i for i in range(N) if want[i] != "cancelled"], "each runs once, the cancelled never"
    place = {node: at for at, node in enumerate(ran)}
    for i in ran:
        for _, target in nodes[i][1]:
            if target in place:
                assert place[target] < place[i], f"{i} ran before {target}, which it waits for"
    for i in range(N):
        if want[i] == "cancelled":
            reason = tasks[ids[i]]["reason"]
            names = [n for _, t in nodes[i][1] for n in (ids[t], ids[t][:8], f"n{t}")]
            assert reason and any(n in reason for n in names), f"{i}: {reason!r} names none of {names}"


def test_a_blocked_task_says_what_it_waits_for_and_can_be_cancelled(cloud):
    first = cloud.out("vbatch", "-n", "long-one", "sleep", "60")
    second = cloud.out("vbatch", "--after-success", "long-one", "echo", "never")
    third = cloud.out("vbatch", "--after", second, "sh", "-c", "echo ran > third")
    info = cloud.wait_state(second, "blocked")
    assert info["after"] and first[:8] in info["after"][0] and "success" in info["after"][0], info["after"]
    why = cloud.virga("task", "why", second, check=0).stdout.decode()
    assert first[:8] in why or "long-one" in why, why
    cloud.virga("task", "cancel", second, check=0)
    cloud.wait_state(second, "cancelled")
    assert cloud.virga("task", "wait", third).returncode == 0  # however it ended
    assert (cloud.work / "third").read_text() == "ran\n"
    cloud.virga("task", "cancel", first, check=0)
    cloud.wait_state(first, "cancelled")


def test_a_task_can_wait_for_a_whole_group(cloud):
    script = 'test -e go || exit 1; sleep 0.2; echo $VIRGA_SHARD >> parts'
    (cloud.work / "go").touch()
    group = cloud.out("vbatch", "-N", "6", "sh", "-c", script)
    after = cloud.out("vbatch", "--after-success", group, "sh", "-c", "wc -l < parts")
    assert cloud.virga("task", "wait", after).returncode == 0
    assert cloud.virga("task", "logs", after).stdout.strip() == b"6"
    bad = cloud.out("vbatch", "-N", "3", "sh", "-c", "exit $((VIRGA_SHARD == 1))")
    on_bad = cloud.out("vbatch", "--after-fail", bad, "echo", "told")
    on_good = cloud.out("vbatch", "--after-success", bad, "echo", "never")
    assert cloud.virga("task", "wait", on_bad).returncode == 0
    cloud.wait_state(on_good, "cancelled")
