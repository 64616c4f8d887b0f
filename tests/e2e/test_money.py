"""Prices, the ledger, what people are told of it, budgets: with real programs. Every sum is worked out again here, in exact fractions."""
import csv
import io
import json
import os
import signal
import sqlite3
import time
from fractions import Fraction

import oci
from test_chaos import Round
from test_hooks import Server, documented_verify, set_hook
from virga import WAIT_S, wait_for

CONFIG = """
currency: EUR
pools:
- name: cpu
  shape: {cpus: 0.01, mem: 64M}
  price: {cpu_hour: 3600.000001, gib_hour: 1.234567}
energy: {co2_g_per_kwh: 400, pue: 1.25}
"""
HOUR = 3_600_000_000
ROUNDS = 4


def read(cloud, sql):
    db = sqlite3.connect(f"file:{cloud.home}/control/state.db?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        return [dict(r) for r in db.execute(sql)]
    finally:
        db.close()


def due(prices, attempt):
    """What an attempt costs: each microsecond at the price that held then, rounded down once."""
    at, exact = attempt["from_usec"], Fraction(0)
    while at < attempt["until_usec"]:
        price = max((p for p in prices if p["from_usec"] <= at), key=lambda p: (p["from_usec"], p["id"]))
        end = min([attempt["until_usec"]] + [p["from_usec"] for p in prices if p["from_usec"] > at])
        an_hour = (Fraction(price["cpu_hour_micro"] * attempt["cpu_milli"], 1000) +
                   Fraction(price["gib_hour_micro"] * attempt["mem_bytes"], 1 << 30))
        exact += an_hour * (end - at) / HOUR
        at = end
    return exact.numerator // exact.denominator


def settled(cloud):
    """Everything has ended and is in the ledger: vrun returns a moment before."""
    wait_for("everything to be charged", lambda: not cloud.json("task", "list") and len(read(cloud, "SELECT 1 FROM attempts"))
             == len(read(cloud, "SELECT DISTINCT task, attempt FROM ledger WHERE task<>''")))


def reckon(cloud):
    """Every attempt of the cloud against the ledger; returns how many there are and what they cost."""
    prices = read(cloud, "SELECT * FROM prices WHERE pool='cpu'")
    attempts = read(cloud, "SELECT * FROM attempts")
    charged = {(r["task"], r["attempt"]): r for r in read(
        cloud, "SELECT task, attempt, sum(cost_micro) AS cost, sum(until_usec-from_usec) AS held, count(*) AS n, max(part) AS last "
               "FROM ledger WHERE task<>'' GROUP BY task, attempt")}
    for a in attempts:
        row = charged.pop((a["task"], a["attempt"]))
        assert row["cost"] == due(prices, a), (a, row)
        assert row["held"] == a["until_usec"] - a["from_usec"] and row["n"] == row["last"] + 1, (a, row)
    assert not charged, charged
    return len(attempts), sum(due(prices, a) for a in attempts)


def test_every_attempt_is_charged_exactly_through_kill_9_and_changes_of_price(cloud):
    long = cloud.out("vbatch", "-n", "long", "sleep", "600")
    cloud.wait_state(long, "running")
    for number in range(ROUNDS):
        Round(cloud, number).go()
        cloud.virga("price", "set", "-P", "cpu", "--cpu-hour", f"{1000 + number}.000007", check=0)
    cloud.virga("task", "cancel", long, check=0)
    cloud.wait_state(long, "cancelled")
    settled(cloud)
    n, cost = reckon(cloud)
    rows = [r for r in read(cloud, "SELECT * FROM ledger") if r["task"] == long]
    assert len({r["price"] for r in rows}) == ROUNDS + 1, "a part at each price"
    assert cloud.json("cost")["total"]["cost_micro"] == cost
    assert cloud.task(long)["cost_micro"] == sum(r["cost_micro"] for r in rows)
    assert n > ROUNDS


def test_costs_are_added_up_by_whatever_is_asked_for(cloud):
    cloud.vrun("-l", "exp=a,b", "--project", "dune", "sleep", "0.1", check=0)
    cloud.vrun("-l", "exp=c", "sleep", "0.1", check=0)
    settled(cloud)
    total = cloud.json("cost")["total"]["cost_micro"]
    for by in ("user", "team", "project", "pool", "class", "day", "month", "node", "task", "label:exp", "user,day"):
        answer = cloud.json("cost", "--by", by)
        assert sum(r["cost_micro"] for r in answer["rows"]) == total, by
        assert all(len(r["key"]) == by.count(",") + 1 for r in answer["rows"])
    projects = {r["key"][0]: r for r in cloud.json("cost", "--by", "project")["rows"]}
    assert projects["dune"]["tasks"] == 1 and projects["dune"]["cost_micro"] > 0
    lines = list(csv.DictReader(io.StringIO(cloud.out("virga", "cost", "--by", "label:exp", "-o", "csv"))))
    assert {"a,b", "c"} <= {line["label:exp"] for line in lines}
    exported = list(csv.DictReader(io.StringIO(cloud.out("virga", "cost", "export"))))
    assert sum(int(r["cost_micro"]) for r in exported) == total
    objects = [json.loads(line) for line in cloud.out("virga", "cost", "export", "-o", "json").splitlines()]
    assert [o["seq"] for o in objects] == sorted((int(r["seq"]) for r in exported), reverse=True)
    assert b"dune" in cloud.virga("cost", "--by", "project", check=0).stdout
    usage = cloud.virga("usage", "--by", "pool", check=0).stdout
    assert b"KWH" in usage and b"EUR" not in usage


def test_a_credit_is_a_row_of_its_own(cloud):
    before = cloud.json("cost")["total"]["cost_micro"]
    cloud.virga("cost", "credit", "--user", cloud.json("user", "me")["user"], "--amount", "0.000025", "--why", "it was our fault", check=0)
    assert cloud.json("cost")["total"]["cost_micro"] == before - 25
    assert b"credit of 25 millionths" in cloud.virga("audit", "list", check=0).stdout
    refused = cloud.virga("cost", "credit", "--user", "nobody-here", "--amount", "1", "--why", "x")
    assert refused.returncode != 0 and b"there is no user" in refused.stderr


def test_an_estimate_and_what_it_may_cost(cloud):
    cloud.virga("price", "set", "-P", "cpu", "--cpu-hour", "36000", "--gib-hour", "0", check=0)  # a tenth a second
    said = cloud.vrun("--dry-run", "--time", "100s", "true", check=0).stdout
    assert b"expected cost" in said
    refused = cloud.vrun("--max-cost", "0.01", "true")
    assert refused.returncode == 125 and b"--max-cost would not pay for a second" in refused.stderr
    task = cloud.out("vbatch", "--max-cost", "0.15", "sleep", "600")
    ended = cloud.wait_state(task, "failed", "cancelled")
    assert "--max-cost" in ended["reason"]
    assert 0 < ended["cost_micro"] < 150_000 + WAIT_S * 100_000, "it was ended, not forgotten"


def test_a_budget_keeps_tasks_from_starting_until_there_is_more(cloud):
    cloud.virga("budget", "set", "small", "--scope", "cloud", "--limit", "0.000001", "--policy", "queue", "--period", "year", check=0)
    wait_for("the budget to be used up", lambda: cloud.json("budget", "list")[0]["state"] == "capped")
    task = cloud.out("vbatch", "true")
    why = cloud.json("task", "why", task)
    assert why["code"] == "budget" and "budget 'small' (cloud) is used up" in why["text"]
    assert cloud.task(task)["state"] == "queued"
    cloud.virga("budget", "set", "small", "--limit", "1000000", check=0)
    cloud.wait_state(task, "succeeded")
    cloud.virga("budget", "remove", "small", check=0)
    assert cloud.json("budget", "list") == []


def test_a_budget_ends_what_runs_at_its_limit(cloud):
    cloud.virga("price", "set", "-P", "cpu", "--cpu-hour", "360000", check=0)  # one a second
    spent = cloud.json("cost", "--from", time.strftime("%Y-01-01T00:00Z", time.gmtime()))["total"]["cost_micro"]
    limit = max(spent, 0) + 3_000_000
    task = cloud.out("vbatch", "-n", "burner", "sh", "-c", "trap 'echo warned; exit 3' TERM; touch burns; sleep 600 & wait")
    wait_for("it to burn", (cloud.work / "burns").exists)
    cloud.virga("budget", "set", "cap", "--scope", "cloud", "--limit", f"{limit // 10**6}.{limit % 10**6:06}", "--policy", "stop",
                "--period", "year", "--grace", "1s", check=0)
    ended = cloud.wait_state(task, "cancelled")
    assert "budget 'cap' (cloud) is used up" in ended["reason"]
    assert b"warned" in cloud.virga("task", "logs", task, check=0).stdout, "it had notice"
    budget = cloud.json("budget", "list")[0]
    assert budget["state"] == "capped" and budget["warned_percent"] in (50, 80, 95)
    assert budget["spent_micro"] <= limit + WAIT_S * 1_000_000, "it was ended, not forgotten"
    assert cloud.task(cloud.out("vbatch", "true"))["state"] == "queued"
    cloud.virga("budget", "remove", "cap", check=0)


def test_a_group_costs_what_its_members_do(cloud):
    group = cloud.out("vbatch", "-N", "3", "-n", "three", "sleep", "0.2")
    cloud.wait_state(group, "succeeded")

    def sums():
        rows = read(cloud, f"SELECT sum(l.cost_micro) AS cost FROM ledger l JOIN tasks t ON t.id=l.task WHERE t.fold='{group}'")
        return cloud.task(group).get("cost_micro"), rows[0]["cost"]

    cost, _ = wait_for("all of it to be stored", lambda: (s := sums()) and s[0] == s[1] and s)
    assert cost > 0
    listed = cloud.virga("task", "list", "--all", check=0).stdout.splitlines()
    assert b"COST" in listed[0] and any(b"three" in line and b" EUR " in line for line in listed)
    assert b"cost      " in cloud.virga("task", "get", group, check=0).stdout


def test_a_listener_hears_of_a_level_and_of_the_limit(cloud):
    server, verify = Server(), documented_verify()
    me = cloud.json("user", "me")["user"]
    secret = set_hook(cloud, "purse", server.url + "/purse", "budget.warned,budget.capped")
    cloud.virga("budget", "set", "purse", "--scope", f"user:{me}", "--limit", "10", "--warn", "50", "--period", "once", "--policy", "queue", check=0)
    for amount, name, n in (("-6", "budget.warned", 1), ("-5", "budget.capped", 2)):
        cloud.virga("cost", "credit", "--user", me, "--amount", amount, "--why", "a test of the budget", check=0)
        headers, event = server.take("/purse", n)[n - 1]
        assert event["event"] == name, event
        assert "purse" in json.dumps(event)
    for _, headers, body in server.requests:
        assert verify(secret, headers["Virga-Signature"], body) and not verify(secret, headers["Virga-Signature"], body + b" ")
    cloud.virga("budget", "remove", "purse", check=0)
    cloud.virga("hook", "remove", "purse", check=0)
    server.close()


def test_gpus_that_do_nothing_cost_less_and_what_is_saved_is_told(make_cloud):
    cloud = make_cloud("""
currency: EUR
heartbeat: 500ms
pools:
- name: default
  price: {gpu_hour: 3600, idle_discount: 50}
""")
    cloud.up("--gpus", "fake:1")
    wait_for("the card", lambda: [g["state"] for g in cloud.json("gpu", "list")] == ["free"])
    task = cloud.out("vbatch", "--gpus", "1", "sleep", "4")
    cloud.wait_state(task, "succeeded")
    rows = wait_for("what is taken off", lambda: (r := read(cloud, f"SELECT * FROM ledger WHERE task='{task}' ORDER BY part")) and r[-1]["kind"] == "unused" and r)
    held = [r for r in rows if r["kind"] == "held"]
    whole = sum(r["until_usec"] - r["from_usec"] for r in held)
    idle = min(sum(r["gpu_unused_usec"] for r in held), whole)
    assert sum(r["cost_micro"] for r in held) == whole and 0 < idle <= whole, "a millionth a microsecond"
    assert rows[-1]["cost_micro"] == -(whole // 2 * idle // whole)
    told = cloud.virga("cost", "--from", "1h", check=0).stdout
    assert b"1 GPU held around the clock would have cost 36" in told and b"%) saved" in told, told


MONTH = 30 * 86_400_000_000


def kept(cloud, versions):
    """The rows of what is kept: they follow each other, and come to what these versions [(created, removed or None, bytes)] cost."""
    prices = read(cloud, "SELECT * FROM prices WHERE pool='' AND class=''")
    rows = read(cloud, "SELECT * FROM ledger WHERE kind='storage' ORDER BY from_usec")
    for a, b in zip(rows, rows[1:]):
        assert a["until_usec"] <= b["from_usec"], "never twice"
    exact = Fraction(0)
    for created, removed, size in versions:
        at, end = max(created, min(p["from_usec"] for p in prices)), min(removed or rows[-1]["until_usec"], rows[-1]["until_usec"])
        while at < end:
            price = max((p for p in prices if p["from_usec"] <= at), key=lambda p: (p["from_usec"], p["id"]))
            until = min([end] + [p["from_usec"] for p in prices if p["from_usec"] > at])
            exact += Fraction(price["storage_gib_month_micro"] * size * (until - at), MONTH << 30)
            at = until
    assert sum(r["cost_micro"] for r in rows) == exact.numerator // exact.denominator, (rows, versions)
    return rows


def of_kind(cloud, kind):
    return next((r for r in cloud.json("cost", "--by", "kind")["rows"] if r["key"] == [kind]), {"cost_micro": 0})


def test_what_is_kept_costs_until_it_is_removed_also_through_kill_9(cloud, tmp_path):
    archive = str(tmp_path / "image.tar")
    oci.Image([oci.layer({"big": b"x" * 3_000_000})], {}, "kept:here", False).write_archive(archive, tmp_path)
    cloud.virga("env", "import", archive, "--name", "before", check=0)
    refused = cloud.virga("price", "set", "-P", "cpu", "--storage-gib-month", "1")
    assert refused.returncode != 0 and b"what is kept lies in no pool" in refused.stderr
    cloud.virga("price", "set", "--storage-gib-month", "1000000", check=0)
    wait_for("what was there to cost something", lambda: of_kind(cloud, "storage")["cost_micro"] > 0)
    cloud.virga("env", "import", archive, "--name", "after", check=0)
    cloud.virga("price", "set", "--storage-gib-month", "999999.999999", check=0)
    there = {e["name"]: e for e in cloud.json("env", "list")}
    old = cloud.pid("virgad")
    os.kill(old, signal.SIGKILL)
    wait_for("another virgad", lambda: cloud.pid("virgad") not in (0, None, old) and cloud.virga("status").returncode == 0)
    cloud.virga("env", "rm", "before", check=0)
    rows = read(cloud, "SELECT * FROM ledger WHERE kind='storage' ORDER BY from_usec")
    assert rows, "written before it was removed"
    removed = rows[-1]["until_usec"]
    size = {n: e["bytes"] for n, e in there.items()}
    assert size["before"] > 2_900_000
    versions = [(there["before"]["created_usec"], removed, size["before"]), (there["after"]["created_usec"], None, size["after"])]
    kept(cloud, versions)
    cloud.virga("env", "rm", "after", check=0)
    rows = kept(cloud, versions)
    assert rows[-1]["until_usec"] > removed and rows[-1]["mem_bytes"] == size["after"], "the other one went on alone"
    sum_of = sum(r["cost_micro"] for r in rows)
    wait_for("nothing that costs", lambda: of_kind(cloud, "storage")["cost_micro"] == sum_of)
    answer = of_kind(cloud, "storage")
    assert answer["cost_micro"] == sum_of and answer["tasks"] == 0 and answer["storage_gib_msec"] >= 0
    assert cloud.json("env", "list") == []
