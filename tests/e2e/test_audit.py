"""The audit log: who changed what, and that nobody changes the log unseen."""
import hashlib
import json
import sqlite3
import struct

import pytest
from virga import Cloud, wait_for


@pytest.fixture()
def own():
    cloud = Cloud()
    cloud.up()
    yield cloud
    cloud.down()
    cloud.kill_leftovers()
    cloud.remove()


def entries(cloud, *more):
    return json.loads(cloud.out("virga", "audit", "list", "-o", "json", *more))["audit"]


def verify(cloud, *more):
    done = cloud.virga("audit", "verify", "-o", "json", *more)
    said = json.loads(done.stdout)
    assert done.returncode == (1 if said["broken"] else 0)
    return said


def database(cloud):
    """As somebody who has the file: what the program itself never does is done here."""
    db = sqlite3.connect(cloud.home / "control" / "state.db", timeout=20)
    return db


def chain(rows):
    last = bytes(32)
    for row in rows:
        words = [row["who"].encode(), row["what"].encode(), row["from"].encode()]
        text = last + struct.pack(">QQ", row["seq"], row["when_usec"]) + b"".join(struct.pack(">I", len(w)) + w for w in words)
        last = hashlib.sha256(text).digest()
        yield last.hex()


def test_every_change_is_in_the_log_and_the_chain_is_as_written(own):
    own.virga("team", "add", "vision", check=0)
    own.virga("user", "add", "ann", "--team", "vision", check=0)
    own.virga("user", "set", "ann", "--role", "lead", "--disable", check=0)
    token = own.out("virga", "token", "create", "--user", "root").strip()[4:20]
    own.virga("token", "revoke", token, check=0)
    own.virga("user", "rm", "ann", check=0)
    rows = entries(own)
    assert [r["what"] for r in rows[:6]] == ["user ann removed", f"token {token} of user root revoked",
                                             f"token {token} made for user root", "user ann: role lead disabled",
                                             "user ann added to team vision as member",
                                             "team vision added to organisation main"]
    assert all(r["who"] == "root" and r["from"] == "local" for r in rows[:6])
    rows = sorted(rows, key=lambda r: r["seq"])
    assert [r["hash"] for r in rows] == list(chain(rows))
    assert [r["what"] for r in entries(own, "--search", "VISION", "--limit", "1")] == ["user ann added to team vision as member"]
    assert entries(own, "--user", "nobody") == [] and entries(own, "--since", "1h")
    first = json.loads(own.out("virga", "audit", "list", "-o", "json", "--limit", "2"))
    then = entries(own, "--before", str(first["next"]), "--limit", "1")
    assert then[0]["seq"] == first["next"] - 1
    said = verify(own)
    assert said == {"checked": len(rows), "broken": None, "head": rows[-1]["hash"], "entries": []}


def test_whoever_goes_around_the_program_is_found_out(own):
    for name in ("a1", "a2", "a3", "a4"):
        own.virga("team", "add", name, check=0)
    old = verify(own)
    db = database(own)
    with pytest.raises(sqlite3.IntegrityError, match="only added to"):
        db.execute("UPDATE audit SET who='eve' WHERE seq=2")
    with pytest.raises(sqlite3.IntegrityError, match="only added to"):
        db.execute("DELETE FROM audit WHERE seq=2")
    db.execute("DROP TRIGGER audit_stays")
    db.execute("DROP TRIGGER audit_is_fixed")
    was = db.execute("SELECT what FROM audit WHERE seq=2").fetchone()[0]
    db.execute("UPDATE audit SET what='team b2 added' WHERE seq=2")
    db.commit()
    said = verify(own)
    assert "entry 2 does not fit" in said["broken"] and said["entries"][0]["what"] == "team b2 added"
    db.execute("UPDATE audit SET what=? WHERE seq=2", (was,))
    db.commit()
    assert verify(own)["broken"] is None
    row = db.execute("SELECT * FROM audit WHERE seq=3").fetchone()
    db.execute("DELETE FROM audit WHERE seq=3")
    db.commit()
    assert "entry 4 stands where entry 3 should" in verify(own)["broken"]
    db.execute("INSERT INTO audit(seq,when_usec,who,what,origin,hash) VALUES(?,?,?,?,?,?)", row)
    db.commit()
    assert verify(own, "--head", old["head"])["broken"] is None
    db.execute("DELETE FROM audit WHERE seq=(SELECT max(seq) FROM audit)")
    db.commit()
    assert verify(own)["broken"] is None, "what is left is a chain"
    assert "cut off" in verify(own, "--head", old["head"])["broken"]
    own.virga("team", "add", "later", check=0)
    assert "cut off" in verify(own, "--head", old["head"])["broken"]


def test_a_log_of_before_becomes_a_chain(own):
    for name in ("a1", "a2", "a3"):
        own.virga("team", "add", name, check=0)
    before = entries(own)
    own.down()
    db = database(own)
    db.execute("DROP TRIGGER audit_is_fixed")
    db.execute("UPDATE audit SET hash=X''")
    db.execute("CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit WHEN length(OLD.hash)>0 BEGIN"
               " SELECT RAISE(ABORT, 'the audit log is only added to'); END")
    db.commit()
    db.close()
    own.up()
    wait_for("the control plane to be back", lambda: own.virga("status").returncode == 0)
    assert verify(own)["broken"] is None
    kept = [r for r in entries(own) if r["seq"] <= before[0]["seq"]]
    assert [(r["seq"], r["hash"]) for r in kept] == [(r["seq"], r["hash"]) for r in before]


def test_the_log_is_for_administrators(own):
    own.virga("user", "add", "ann", check=0)
    token = own.out("virga", "token", "create", "--user", "ann").strip()
    home = own.work / "ann"
    home.mkdir()
    env = own.env | {"VIRGA_HOME": str(home)}
    address = (own.home / "control" / "address").read_text().strip()
    own.run(["virga", "login", address, "--token", token], env=env, check=0)
    for argv in (["audit", "list"], ["audit", "verify"]):
        done = own.run(["virga", *argv], env=env)
        assert done.returncode != 0 and b"administrator" in done.stderr
    own.run(["virga", "user", "set", "ann", "--full-name", "Ann"], env=env, check=0)
    assert (entries(own)[0]["who"], entries(own)[0]["from"]) == ("ann", "127.0.0.1")
    task = own.run(["vrun", "-d", "sleep", "1000"], env=env, check=0).stdout.decode().split()[-1]
    own.virga("task", "cancel", task, check=0)
    assert (entries(own)[0]["who"], entries(own)[0]["what"]) == ("root", f"task {task} of user ann cancelled")
