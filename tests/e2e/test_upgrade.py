"""A database from before people, prices, secrets and hooks were in it (tests/data/store-7.sql: the seventh schema, with tasks): the programs
of today bring it up to date, and nothing of it is lost."""
import sqlite3
import time

import pytest
from virga import ROOT, Cloud, wait_for

LATER_USEC = 4_102_444_800 * 10**6  # the year 2100: nothing of it begins while this runs


@pytest.fixture
def cloud():
    cloud = Cloud("pools:\n  - name: default\n    shape: {cpus: 0.1}\n    price: {cpu_hour: 3600}\n")
    (cloud.home / "control").mkdir(mode=0o700)
    now = int(time.time() * 10**6)
    with sqlite3.connect(cloud.home / "control" / "state.db") as db:
        db.executescript((ROOT / "tests" / "data" / "store-7.sql").read_text())
        db.execute("UPDATE tasks SET created_usec=?, started_usec=?, ended_usec=? WHERE ended=1", (now - 9, now - 8, now - 7))  # old ones are forgotten
        db.execute("UPDATE schedules SET next_usec=?", (LATER_USEC,))
    db.close()
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.down()
        cloud.kill_leftovers()
        cloud.remove()


def test_a_database_of_an_older_release_is_brought_up_to_date(cloud):
    tasks = {t["name"]: t for t in cloud.json("task", "list", "--all")}
    assert (tasks["done"]["state"], tasks["done"]["status"], tasks["done"]["labels"]) == ("failed", 3, {"k": "v"})
    assert tasks["later"]["state"] == "queued"
    assert [s["name"] for s in cloud.json("schedule", "list")] == ["hourly"]
    people = {u["name"]: (u["team"], u["role"], u["service"], u["disabled"]) for u in cloud.json("user", "list")}
    assert people == {"root": ("main", "admin", False, False), "ann": ("vision", "lead", False, False)}
    (token,) = cloud.json("token", "list")
    assert (token["user"], token["name"], token["scopes"]) == ("ann", "laptop", [])  # it may do what it could
    old = sqlite3.connect(f"file:{cloud.home / 'control' / 'state.db'}?mode=ro", uri=True)
    kept = [what for (what,) in old.execute("SELECT what FROM audit ORDER BY seq LIMIT 8")]
    old.close()
    assert kept[3].startswith("token ") and kept[7] == "shutdown: Terminated"
    cloud.virga("audit", "verify", check=0)
    assert cloud.json("cost")["total"]["cost_micro"] == 0  # what ran before there were prices is free
    assert cloud.out("vrun", "echo", "on we go") == "on we go"
    wait_for("what runs now to be charged", lambda: cloud.json("cost")["total"]["cost_micro"] > 0)
    cloud.virga("task", "cancel", "later", check=0)
    cloud.wait_state("later", "cancelled")
