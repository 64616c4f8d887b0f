"""Two teams on one cloud: neither learns anything of the other, by what is answered or by how it is refused. Every question is asked
about something of the other team and about something that does not exist, and the two answers must be the same."""
import http.client
import json
import re

import pytest
from remote import Remote, token_for
from rest import rest_of
from virga import Cloud, wait_for

NOWHERE = "0123456789abcdef"
SECRETS = ["ann", "vision", "hush-name", "hush-arg", "hush-session", "hush-env", "hush-plan", "hush-label", "hush-project",
           "hush-secret", "hush-budget", "hush-hook"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    cloud = Cloud("web: 127.0.0.1:0\nlimits: {web_rate: 0}\npools:\n  - name: default\n    shape: {cpus: 0.2}\n  - name: g\n    shape: {gpus: 1, cpus: 0.2}\n    price: {gpu_hour: 2}\n")
    cloud.up("--gpus", "fake:1")
    folder = tmp_path_factory.mktemp("walls")
    try:
        for team, user, role in (("vision", "ann", "lead"), ("speech", "bob", "member"), ("speech", "lou", "lead"), ("main", "moe", "lead")):
            cloud.virga("team", "add", team)
            cloud.virga("user", "add", user, "--team", team, "--role", role, check=0)
        people = {u: Remote(cloud, folder / u, token_for(cloud, u)) for u in ("ann", "bob", "lou", "moe")}
        ann = people["ann"]
        ann.virga("secret", "set", "hush-secret", input=b"value", check=0)
        ann.virga("secret", "set", "hush-secret2", "--team", "vision", input=b"value", check=0)
        cloud.virga("budget", "set", "hush-budget", "--scope", "team:vision", "--limit", "1000", check=0)
        ann.virga("hook", "set", "hush-hook", "--url", "https://192.0.2.1/hush-hook", "--event", "task.ended", check=0)
        made = ["-n", "hush-name", "-l", "hush-label=1", "-P", "g", "--project", "hush-project"]
        task = ann.run("vrun", "-d", *made, "sh", "-c", "echo hush-arg; sleep 1000", check=0).stdout.decode().split()[-1]
        wait_for("the task to run", lambda: cloud.task(task)["state"] == "running")
        queued = ann.run("vrun", "-d", *made, "sleep", "1000", check=0).stdout.decode().split()[-1]
        ann.run("vrun", "-s", "hush-session", "true", check=0)
        ended = ann.run("vrun", "-d", "-n", "hush-name2", "echo", "hush-arg", check=0).stdout.decode().split()[-1]
        ann.run("vbatch", "-n", "hush-plan", "--every", "1h", "true", check=0)
        ann.virga("task", "wait", ended)
        yield cloud, people, {"running": task, "queued": queued, "ended": ended}
    finally:
        cloud.down()
        cloud.kill_leftovers()
        cloud.remove()


def said(done):
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def clean(text, *words):
    """What differs by the question itself, and clocks."""
    for word in words:
        text = text.replace(word, "X")
    return re.sub(r"\d+(\.\d+)? ?(ms|s|m|h|d)\b( ago)?|\b\d{10,}\b", "T", text)


LISTS = [["task", "list", "--all", "--all-users"], ["task", "list", "--all-users", "--flat"], ["queue"], ["gpu", "list"], ["gpu", "health"],
         ["node", "list"], ["pool", "list"], ["session", "list"], ["schedule", "list"], ["user", "list"], ["org", "list"], ["token", "list"],
         ["env", "list"], ["status"], ["secret", "list"], ["cost", "--by", "user,team,project"], ["usage"], ["budget", "list"],
         ["price", "list"], ["hook", "list"]]


@pytest.mark.parametrize("who", ["bob", "lou", "moe"])
def test_no_list_tells_of_the_other_team(world, who):
    cloud, people, tasks = world
    person = people[who]
    for argv in LISTS:
        for form in ([], ["-o", "json"]):
            status, out, err = said(person.virga(*argv, *form))
            if "unknown command" in err:
                continue
            for word in SECRETS + [t[:8] for t in tasks.values()]:
                assert not re.search(rf"(?<![\w-]){word}", out + err), f"{argv}: {word} in {out}{err}"
            if argv[0] == "status" and not form:
                assert status == 0


def test_a_control_shows_that_the_lists_would_tell(world):
    cloud, people, tasks = world
    out = people["ann"].virga("task", "list", "--all-users", check=0).stdout.decode()
    assert "hush-name" in out and tasks["queued"][:8] in out
    assert "hush-session" in people["ann"].virga("session", "list", check=0).stdout.decode()
    assert "ann" in json.dumps(json.loads(cloud.out("virga", "gpu", "list", "-o", "json")))
    assert "ann" in cloud.out("virga", "queue")


ASKS = [["task", "get", "{}"], ["task", "why", "{}"], ["task", "logs", "{}"], ["task", "wait", "{}"], ["task", "cancel", "{}"],
        ["task", "signal", "{}", "TERM"], ["task", "share", "{}", "--gpu-mem", "1G"], ["attach", "{}"], ["task", "list", "--of", "{}"],
        ["task", "list", "--before", "{}"], ["task", "plot", "{}"]]


@pytest.mark.parametrize("who", ["bob", "lou", "moe"])
def test_what_is_not_yours_is_refused_as_what_is_not_there(world, who):
    cloud, people, tasks = world
    for argv in ASKS:
        nothing = said(people[who].virga(*[a.format(NOWHERE) for a in argv]))
        for ref in [*tasks.values(), *(t[:8] for t in tasks.values()), "hush-name"]:
            there = said(people[who].virga(*[a.format(ref) for a in argv]))
            assert [clean(str(x), ref) for x in there] == [clean(str(x), NOWHERE) for x in nothing], (argv, ref)
    for argv, mine, none in ((["session", "end", "{}"], "ann/hush-session", "nob/hush-sessiox"),
                             (["schedule", "rm", "{}"], "hush-plan", "hush-plax"),
                             (["env", "get", "{}"], "ann//hush-env", "nob//hush-env"),
                             (["user", "set", "{}", "--full-name", "x"], "ann", "nob"),
                             (["token", "create", "--user", "{}"], "ann", "nob")):
        one, other = (said(people[who].virga(*[a.format(x) for a in argv])) for x in (mine, none))
        assert [clean(str(x), mine, "ann") for x in one] == [clean(str(x), none, "nob") for x in other], argv
        assert one[0] != 0, (argv, one)
    for argv, mine, none in ((["secret", "remove", "{}"], "hush-secret", "hush-secrex"),
                             (["secret", "remove", "{}"], "vision/hush-secret2", "visiox/hush-secret2"),
                             (["budget", "rm", "{}"], "hush-budget", "hush-budgex"), (["hook", "rm", "{}"], "hush-hook", "hush-hoox"),
                             (["hook", "test", "{}"], "hush-hook", "hush-hoox"), (["cost", "--team", "{}"], "vision", "visiox"),
                             (["cost", "--user", "{}"], "ann", "nob"), (["budget", "set", "b1", "--limit", "1", "--scope", "team:{}"], "vision", "visiox")):
        one, other = (said(people[who].virga(*[a.format(x) for a in argv])) for x in (mine, none))
        assert [clean(str(x), mine) for x in one] == [clean(str(x), none) for x in other], argv
    one, other = (said(people[who].run("vrun", "--secret", name, "true")) for name in ("vision/hush-secret2", "visiox/hush-secret2"))
    assert one[0] != 0 and [clean(str(x), "vision") for x in one] == [clean(str(x), "visiox") for x in other]
    for dependency in (*tasks.values(), "hush-name"):
        one = said(people[who].run("vbatch", "--after", dependency, "true"))
        other = said(people[who].run("vbatch", "--after", NOWHERE, "true"))
        assert one[0] != 0 and [clean(str(x), dependency) for x in one] == [clean(str(x), NOWHERE) for x in other]


def test_who_waits_is_told_that_others_hold_it_and_not_who(world):
    cloud, people, _ = world
    bob = people["bob"]
    task = bob.run("vrun", "-d", "-P", "g", "true", check=0).stdout.decode().split()[-1]
    why = json.loads(bob.virga("task", "why", task, "-o", "json", check=0).stdout)
    text = json.dumps(why)
    assert "another team" in why["text"] and "ann" not in text and "vision" not in text
    assert [h["tenant"] for h in why["holders"]] == ["another team"]
    queue = json.loads(bob.virga("queue", "-o", "json", check=0).stdout)
    first = next(r for r in queue["queue"] if r["task"] is None)
    assert not any(first[k] for k in ("name", "user", "team", "want", "priority", "created_usec"))
    assert any(r["task"] and r["user"] == "bob" for r in queue["queue"])
    others = next(t for t in queue["tenants"] if t["name"] == "another team")
    assert others["running"] >= 1 and not others["weight"]
    boss = json.loads(cloud.out("virga", "task", "why", task, "-o", "json"))
    assert "ann" in json.dumps(boss["holders"]) and "another" not in boss["text"]
    holder = json.loads(bob.virga("gpu", "list", "-o", "json", check=0).stdout)[0]["holders"]
    assert len(holder) == 1 and holder[0]["user"] is None and holder[0]["name"] is None
    bob.virga("task", "cancel", task, check=0)


@pytest.mark.parametrize("who", ["bob", "lou", "moe"])
def test_rest_and_its_events_tell_as_little(world, who):
    cloud, people, tasks = world
    rest = rest_of(cloud, token_for(cloud, who))
    paths = [p for p, m in rest.description["paths"].items() if "get" in m and "{" not in p and p not in ("/events", "/login/oidc", "/openapi.json")]
    paths.remove("/teams")  # names of an organisation's teams are known in it
    known = {t["name"]: t for t in rest.get("/teams")["teams"]}
    assert known["vision"]["users"] is None and known["vision"]["created_usec"] == 0
    assert len(paths) > 15
    for path in paths:
        text = rest.raw("GET", "/api/v1" + path + ("?all_users=1&flat=1" if path == "/tasks" else "")).body.decode(errors="replace")
        for word in SECRETS + [t[:8] for t in tasks.values()]:
            assert not re.search(rf"(?<![\w-]){word}", text), f"{path}: {word} in {text}"
    for path in ("", "/why", "/attempts", "/series", "/logs", "/wait?timeout=1"):
        there, nowhere = (rest.raw("GET", f"/api/v1/tasks/{t}{path}") for t in (tasks["running"], NOWHERE))
        assert there.status == nowhere.status == 404 and clean(there.body.decode(), tasks["running"]) == clean(nowhere.body.decode(), NOWHERE)
    heard = events(rest, 3)
    assert "event:" in heard
    for word in SECRETS + [t[:8] for t in tasks.values()]:
        assert not re.search(rf"(?<![\w-]){word}", heard), f"events: {word} in {heard}"
    assert "hush-name" in events(rest_of(cloud), 3), "an administrator hears of it"


def events(rest, enough):
    """What is told at first: every topic has a word by then."""
    connection = http.client.HTTPSConnection(rest.host.hostname, rest.host.port, timeout=30, context=rest.tls)
    connection.request("GET", "/api/v1/events?all_users=1", headers={"Authorization": f"Bearer {rest.token}"})
    answer, heard = connection.getresponse(), ""
    assert answer.status == 200
    while not all(f"event: {topic}" in heard for topic in ("node", "gpus", "queue", "status")) or heard.count("event:") < enough:
        heard += answer.readline().decode()
    connection.close()
    return heard


def test_a_members_page_is_full_whatever_the_others_have(world):
    cloud, people, _ = world
    for _ in range(3):
        people["bob"].run("vrun", "-n", "mine", "true", check=0)
    for _ in range(4):
        people["ann"].run("vrun", "-n", "hush-many", "true", check=0)
    wait_for("the ends to be stored", lambda: len(json.loads(people["bob"].virga(
        "task", "list", "--all", "--all-users", "--name", "mine", "--limit", "3", "-o", "json", check=0).stdout)) == 3)
    done = people["lou"].virga("task", "list", "--all", "--all-users", "--limit", "3", check=0)
    assert done.stdout.decode().count("mine") == 3
