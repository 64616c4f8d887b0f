"""docs/api-commands.md against the command line's own tables and the served description: what the commands can do, REST can, or the page says why not."""
import re
import subprocess

import pytest

from rest import rest_of
from virga import BIN, ROOT, Cloud

PAGE = (ROOT / "docs/api-commands.md").read_text()
MADE_OF = {"run", "batch", "attach", "ssh", "notebook"}  # they read their options themselves; `virga help` shows them
EVERYWHERE = {"--help", "--output"}


def help_of(*command):
    return subprocess.run([BIN / "virga", *command, "--help"], capture_output=True, text=True, check=True).stdout


def options_in(text):
    """The options that a help text or a completion lists: by the long name, where there is one."""
    return {m[1] or m[0] for m in re.findall(r"^  (-\w)?(?:,)? *(--[\w-]+)?(?: |$)", text, re.M) if m[0] or m[1]} - EVERYWHERE


def command_line():
    """{"task list": {"--all", …}}, from the script that completes what is typed."""
    script = subprocess.run([BIN / "virga", "completion", "bash"], capture_output=True, text=True, check=True).stdout
    words = dict(re.findall(r"^ *'([^']*)'\) words=\"([^\"]*)\"", script, re.M))
    groups = {name for name in words if any(other.startswith(name + " ") for other in words)} | {""}
    found = {name: {w for w in text.split() if w.startswith("-")} - EVERYWHERE for name, text in words.items() if name not in groups}
    return {name: options_in(help_of(name)) if name in MADE_OF else options for name, options in found.items()}


def rows(page, columns):
    for line in page.splitlines():
        cells = [c.strip() for c in line.strip("|").split(" | ")] if line.startswith("| `") else []
        if len(cells) == columns:
            yield cells


def section(page, title):
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def operations(text):
    return re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", text)


def page_commands(page):
    """{"task list": (operations, {"--all": "what the page says"}, "none: …" or "")}"""
    found = {}
    for command, rest, options in rows(page.replace("| |", "|  |"), 3):
        said = dict(re.findall(r"`(--?[\w-]+)` (\([^)]*\)|[\w.]+)", options))
        for name in re.findall(r"`virga ([^`]+)`", command):
            found[name] = (operations(rest), said, rest if rest.startswith("none:") else "")
    return found


def page_submission(page):
    return {option: member for options, member in rows(section(page, "Tasks"), 2) for option in re.findall(r"`(--?[\w-]+)`", options)}


@pytest.fixture(scope="module")
def description():
    cloud = Cloud()
    try:
        cloud.up("--no-agent")
        yield rest_of(cloud).description
    finally:
        cloud.down()
        cloud.remove()


def members(description, operation):
    """Every name that the operation takes: parameters, members of the body, and members of those."""
    method, path = operation.split(" ")
    op = description["paths"].get(path, {}).get(method.lower())
    if op is None:
        return None
    names = {p["name"] for p in op.get("parameters", [])}

    def walk(schema, before):
        if "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        for one in schema.get("anyOf", []):
            walk(one, before)
        for name, inner in schema.get("properties", {}).items():
            names.add(before + name)
            if not before:
                walk(inner, name + ".")

    walk(op.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}), "")
    return names


def faults(page, commands, description):
    """What the page lacks, invents or has wrong."""
    found, submission, wrong = page_commands(page), page_submission(page), []
    wrong += [f"{name}: not on the page" for name in commands.keys() - found.keys()]
    wrong += [f"{name}: there is no such command" for name in found.keys() - commands.keys()]
    for name in commands.keys() & found.keys():
        asked, said, why = found[name]
        taken = [members(description, a) for a in asked]
        wrong += [f"{name}: {a} is not served" for a, t in zip(asked, taken) if t is None]
        if not asked and not why:
            wrong.append(f"{name}: neither an operation nor a reason")
        if why or name in ("run", "batch"):
            continue
        wrong += [f"{name} {o}: not on the page" for o in commands[name] - said.keys()]
        wrong += [f"{name} {o}: there is no such option" for o in said.keys() - commands[name]]
        known = set().union(*(t for t in taken if t))
        wrong += [f"{name} {o}: no {m} in {asked}" for o, m in said.items() if m[0] != "(" and m not in known]
    offered = commands["run"] | commands["batch"]
    wrong += [f"vrun {o}: not on the page" for o in offered - submission.keys()] + [f"vrun {o}: no such option" for o in submission.keys() - offered]
    known = members(description, "POST /tasks")
    for option, said in submission.items():
        if said[0] == "(":
            continue
        asked = operations(said)
        wrong += [f"vrun {option}: {a} is not served" for a in asked if members(description, a) is None]
        wrong += [f"vrun {option}: no {m}" for m in re.findall(r"(?:^|, )([a-z_.]+)(?=,| \(|$)", said) if not asked and m not in known]
    served = {f"{m.upper()} {p}" for p, ms in description["paths"].items() for m in ms}
    named = set(operations(page))
    wrong += [f"{o}: not on the page" for o in served - named] + [f"{o}: not served" for o in named - served]
    return sorted(wrong)


def test_what_the_command_line_can_do_is_served_or_it_is_said_why_not(description):
    commands = command_line()
    assert len(commands) > 80 and len(commands["run"]) > 40, "the command line's tables were not understood"
    assert faults(PAGE, commands, description) == []


def test_a_page_that_is_wrong_is_found_out(description):
    commands = command_line()
    for before, after in (("| `virga task why`", "| `virga task whence`"), ("`--grace` grace_usec, `--yes`", "`--yes`"), ("`--since` since_usec, `--pool` pool, `--name` name, `--flat`", "`--since` sometime, `--pool` pool, `--name` name, `--flat`"),
                          ("| `--mem` | want.mem_bytes |\n", ""), ("| `--mem` | want.mem_bytes |", "| `--mem` | want.memory |"), ("`GET /queue`", "`GET /queues`")):
        assert PAGE.count(before) >= 1, before
        assert faults(PAGE.replace(before, after, 1), commands, description) != [], before
