"""Organisations, teams, users, service accounts and tokens by the command line, and the table of who may do what."""
import json
import os
import subprocess
import sys

import pytest
from remote import Remote, token_for
from rest import rest_of
from virga import ROOT, wait_for

ACTS = "see-team run end-team manage-team see-all end-all manage-nodes manage-users manage-money see-audit".split()


@pytest.fixture(scope="module")
def people(cloud, tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    cloud.virga("org", "add", "acme", check=0)
    cloud.virga("org", "add", "other", check=0)
    for team, org in (("vision", "acme"), ("speech", "acme"), ("far", "other")):
        cloud.virga("team", "add", team, "--org", org, check=0)
    for name, team, role in (("lea", "vision", "lead"), ("max", "vision", "member"), ("vic", "vision", "viewer"),
                             ("sam", "speech", "member"), ("fay", "far", "lead")):
        cloud.virga("user", "add", name, "--team", team, "--role", role, check=0)
    return {name: Remote(cloud, folder / name, token_for(cloud, name)) for name in ("lea", "max", "vic", "sam", "fay")}


def test_the_page_has_the_table_that_is_tested():
    subprocess.run([sys.executable, ROOT / "tools" / "access-table", "--check"], check=True)


def test_each_role_is_told_what_it_may(cloud, people):
    assert people["vic"].json("user", "me")["acts"] == ACTS[:1]
    assert people["max"].json("user", "me")["acts"] == ACTS[:2]
    me = people["lea"].json("user", "me")
    assert me["acts"] == ACTS[:4]
    assert (me["user"], me["team"], me["org"], me["role"]) == ("lea", "vision", "acme", "lead")
    assert json.loads(cloud.out("virga", "user", "me", "-o", "json"))["acts"] == ACTS


def names(rows):
    return sorted(r["name"] for r in rows)


def test_an_organisation_is_a_boundary(people):
    assert names(people["max"].json("team", "list")) == ["speech", "vision"]
    assert names(people["max"].json("org", "list")) == ["acme"]
    assert names(people["fay"].json("team", "list")) == ["far"]
    assert names(people["max"].json("user", "list")) == ["lea", "max", "vic"]
    assert names(people["fay"].json("user", "list")) == ["fay"]
    for argv in (["user", "set", "{}", "--full-name", "x"], ["token", "create", "--user", "{}"]):
        there = people["fay"].refused(*[a.format("max") for a in argv])
        nowhere = people["fay"].refused(*[a.format("nob") for a in argv])
        assert there.replace("max", "nob") == nowhere


def test_a_lead_looks_after_the_team_and_nobody_else(cloud, people):
    lea = people["lea"]
    lea.virga("user", "add", "new", "--full-name", "New One", check=0)
    lea.virga("user", "set", "new", "--role", "viewer", "--email", "new@acme.org", check=0)
    row = next(u for u in lea.json("user", "list") if u["name"] == "new")
    assert (row["team"], row["role"], row["email"], row["full_name"]) == ("vision", "viewer", "new@acme.org", "New One")
    assert "email" in row and next(u for u in people["max"].json("user", "list") if u["name"] == "new")["email"] is None
    assert lea.virga("token", "create", "--user", "new", check=0).stdout.startswith(b"vgt_")
    for argv in (["user", "add", "boss", "--role", "admin"], ["user", "add", "boss", "--role", "lead"],
                 ["user", "add", "x", "--team", "speech"], ["user", "set", "new", "--role", "lead"],
                 ["user", "set", "new", "--team", "speech"], ["user", "set", "lea", "--role", "admin"],
                 ["user", "rm", "new"], ["token", "create", "--user", "root"], ["token", "create", "--user", "sam"]):
        lea.refused(*argv)
    cloud.virga("user", "add", "boss", "--team", "vision", "--role", "admin", check=0)
    assert "lead" in lea.refused("token", "create", "--user", "boss")
    lea.refused("user", "set", "boss", "--disable")
    people["max"].refused("user", "set", "vic", "--disable")
    people["max"].virga("user", "set", "max", "--full-name", "Max", check=0)


def test_who_is_disabled_is_out_at_once(cloud, people, tmp_path):
    cloud.virga("user", "add", "gone", "--team", "vision", check=0)
    gone = Remote(cloud, tmp_path / "gone", token_for(cloud, "gone"))
    watch = subprocess.Popen(["virga", "task", "watch", "-o", "json"], env=gone.env | {"PATH": cloud.env["PATH"]},
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    gone.virga("status", check=0)
    people["lea"].virga("user", "set", "gone", "--disable", check=0)
    assert "disabled" in gone.refused("status")
    try:
        assert watch.wait(timeout=90) != 0
        assert b"disabled" in watch.stderr.read()
    finally:
        watch.kill()
    cloud.virga("user", "set", "gone", "--enable", check=0)
    gone.virga("status", check=0)


def test_a_service_account_has_tokens_and_no_uid(cloud, people, tmp_path):
    refused = cloud.virga("user", "add", "ci", "--service", "--uid", "12345", "--team", "vision")
    assert refused.returncode != 0 and b"--uid" in refused.stderr
    people["lea"].virga("user", "add", "ci", "--service", check=0)
    token = people["lea"].virga("token", "create", "--user", "ci", "--scope", "run", "--ttl", "1h", check=0)
    ci = Remote(cloud, tmp_path / "ci", token.stdout.decode().strip())
    assert ci.json("user", "me")["service"] is True
    assert ci.json("user", "me")["acts"] == ["see-team", "run"]
    assert "scope admin" in ci.refused("token", "create")
    rotated = ci.virga("token", "rotate", check=0).stdout.decode().strip()
    assert rotated.startswith("vgt_") and rotated in (ci.home / "client").read_text()
    rows = [t for t in people["lea"].json("token", "list") if t["user"] == "ci"]
    assert [(t["id"], t["scopes"]) for t in rows] == [(rotated[4:20], ["run"])] and rows[0]["used_usec"] == 0
    ci.virga("status", check=0)
    row = next(t for t in people["lea"].json("token", "list") if t["user"] == "ci")
    assert row["used_usec"] > 0 and row["expires_usec"] - row["created_usec"] == 3600 * 10**6


def test_a_token_makes_none_that_may_do_more(cloud, people, tmp_path):
    boss = Remote(cloud, tmp_path / "boss", token_for(cloud, "root", "--scope", "admin"))
    assert "more than itself" in boss.refused("token", "create", "--scope", "run")
    made = boss.virga("token", "create", check=0).stdout.decode()[4:20]
    assert next(t for t in boss.json("token", "list") if t["id"] == made)["scopes"] == ["admin"]
    assert "read, run" in boss.refused("token", "create", "--scope", "everything")


def test_who_finds_a_token_cannot_make_it_last(cloud, people, tmp_path):
    """Rotating needs no scope, so it must not give a longer life; nor may a session outlive the token that it was begun with."""
    token = token_for(cloud, "root", "--scope", "read", "--ttl", "1h")
    found = Remote(cloud, tmp_path / "found", token)
    assert "as long" in found.refused("token", "rotate", "--ttl", "2h")
    web = rest_of(cloud, token)
    web.token = None
    signed_in = web.post("/login", {"token": token}, status=200)
    web.cookie = signed_in.headers["Set-Cookie"].split(";")[0]
    session = web.cookie.split("_")[1]
    kept = web.post("/tokens", {"replaces": session, "name": "mine"}, headers={"Origin": web.url}, status=400)
    assert "browser" in kept.json["detail"]
    found.virga("token", "rotate", "--ttl", "30m", check=0)
    row = next(t for t in cloud.json("token", "list") if t["id"] == (found.home / "client").read_text().split("vgt_")[1][:16])
    assert row["expires_usec"] - row["created_usec"] == 1800 * 10**6


def test_teams_and_organisations_go_when_they_are_empty(cloud, people):
    def says(word, *argv):
        done = cloud.virga(*argv)
        assert done.returncode != 0 and word in done.stderr.decode(), done

    says("user set NAME --team", "team", "rm", "vision")
    says("teams", "org", "rm", "acme")
    says("stays", "team", "rm", "main")
    says("stays", "org", "rm", "main")
    says("no organisation", "team", "add", "t1", "--org", "nowhere")
    cloud.virga("team", "add", "t1", check=0)
    cloud.virga("team", "set", "t1", "--org", "acme", check=0)
    assert next(t for t in json.loads(cloud.out("virga", "team", "list", "-o", "json")) if t["name"] == "t1")["org"] == "acme"
    cloud.virga("user", "add", "tim", "--team", "t1", check=0)
    cloud.virga("user", "set", "tim", "--team", "speech", check=0)
    cloud.virga("team", "rm", "t1", check=0)
    cloud.virga("org", "add", "empty", check=0)
    cloud.virga("org", "rm", "empty", check=0)
    assert "empty" not in cloud.out("virga", "org", "list")


def test_all_of_it_survives_a_restart(cloud, people):
    before = {what: json.loads(cloud.out("virga", what, "list", "-o", "json")) for what in ("org", "team", "user", "token")}
    os.kill(int((cloud.home / "control" / "pid").read_text()), 9)
    wait_for("the control plane to be back", lambda: cloud.virga("status").returncode == 0)
    for what, rows in before.items():
        now = json.loads(cloud.out("virga", what, "list", "-o", "json"))
        for row in rows + now:
            row.pop("seen_usec", None), row.pop("used_usec", None)
        key = "id" if what == "token" else "name"
        assert sorted(rows, key=lambda r: r[key]) == sorted(now, key=lambda r: r[key])
