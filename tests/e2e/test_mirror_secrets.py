"""What a node may not have, and what one person may not learn of another there."""
import os
import re
import secrets

import pytest
from hosts import Laptop, login
from virga import processes_of, read_bytes

SIZE = 1 << 20


def files_with(folder, needle):
    """Files below `folder` that contain the bytes, in content or name."""
    found = []
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(where, name)
            if needle in os.fsencode(name):
                found.append(path)
            elif os.path.isfile(path) and not os.path.islink(path):
                if needle in read_bytes(path):  # what has gone meanwhile has nothing
                    found.append(path)
    return found


def on_disk(node, needle):
    """Where on the node's disk the bytes are: its home, and what its tasks wrote."""
    return files_with(node.home, needle)


def private_key(laptop, name="id_ed25519"):
    """A key as ssh-keygen writes it, with a mark that can be searched for."""
    folder = laptop.path("/home/dev/.ssh")
    folder.mkdir(mode=0o700, exist_ok=True)
    mark = secrets.token_hex(24)
    (folder / name).write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{mark}\n-----END OPENSSH PRIVATE KEY-----\n" + "x" * 5000)
    (folder / name).chmod(0o600)
    return f"/home/dev/.ssh/{name}", mark.encode()


def test_a_private_key_is_seen_but_not_read(far):
    laptop, node = far.laptop, far.nodes[0]
    path, mark = private_key(laptop)
    size = laptop.path(path).stat().st_size
    done = laptop.vrun("stat", "-c", "%s", path)
    assert done.stdout == b"%d\n" % size, done.stderr
    done = laptop.vrun("cat", path)
    assert done.returncode == 1 and mark not in done.stdout
    text = done.stderr.decode()
    assert "Permission denied" in text
    assert re.search(r"--allow\s+\S*id_ed25519", text), f"it should say what would allow it: {text}"
    assert not on_disk(node, mark)


def test_an_allowed_key_is_read_and_never_on_the_nodes_disk(far):
    laptop, node = far.laptop, far.nodes[0]
    path, mark = private_key(laptop, "id_allowed")
    ordinary = secrets.token_hex(24).encode()
    laptop.path("/home/dev/ordinary").write_bytes(ordinary * 200)
    done = laptop.vrun("--allow", path, "sh", "-c", f"cat {path} ~/ordinary; cp {path} /dev/null; sleep 0.2; cat {path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(mark) == 2 and ordinary in done.stdout
    # The control: a file that is no secret is on the node's disk, so this search finds what is there.
    assert on_disk(node, ordinary), "the search is worth nothing"
    assert not on_disk(node, mark)
    # And the next run without the flag is refused again.
    done = laptop.vrun("cat", path)
    assert done.returncode == 1 and mark not in done.stdout


@pytest.mark.parametrize("path", ["/etc/shadow", "/home/dev/.netrc", "/home/dev/.aws/credentials", "/home/dev/.gnupg/private-keys-v1.d/k.key",
                                  "/home/dev/.config/gh/hosts.yml", "/home/dev/.docker/config.json", "/home/dev/.kube/config"])
def test_other_secrets_are_refused_by_default(far, path):
    laptop = far.laptop
    mark = secrets.token_hex(16)
    if path != "/etc/shadow":
        laptop.path(path).parent.mkdir(parents=True, exist_ok=True)
        laptop.path(path).write_text(mark + "\n")
    else:
        mark = laptop.path(path).read_text().splitlines()[0]
    done = laptop.vrun("cat", path)
    assert done.returncode != 0 and mark.encode() not in done.stdout
    explained = laptop.virga("mirror", "explain", path)
    assert explained.returncode == 0 and b"never its content" in explained.stdout and b"--allow" in explained.stdout, explained


def test_what_a_virgaignore_names_is_not_there(far):
    laptop, node = far.laptop, far.nodes[0]
    mark = secrets.token_hex(24)
    (laptop.work / ".virgaignore").write_text("hidden*\nbuild/\n")
    (laptop.work / "hidden.txt").write_text(mark)
    (laptop.work / "build").mkdir()
    (laptop.work / "build/x").write_text(mark)
    (laptop.work / "shown.txt").write_text("shown\n")
    done = laptop.vrun("sh", "-c", "ls; cat hidden.txt build/x; cat shown.txt")
    names = done.stdout.decode().split()
    assert "shown.txt" in names and "hidden.txt" not in names and "build" not in names
    assert mark.encode() not in done.stdout and done.stdout.endswith(b"shown\n")
    assert not on_disk(node, mark.encode())
    assert b"hidden" in laptop.virga("mirror", "explain", f"{laptop.inner}/hidden.txt").stdout


# ---------------------------------------------------------------------- two people on one node


@pytest.fixture(scope="module")
def two(far):
    """A second person with a laptop of their own, on the same node."""
    far.control.virga("user", "add", "bea", check=0)
    other = far.add("other", "10.77.0.22", kind=Laptop)
    login(far, other, "--user", "bea")
    return far.laptop, other


def put(laptop, path, content):
    laptop.path(path).parent.mkdir(parents=True, exist_ok=True)
    laptop.path(path).write_bytes(content)


def names_below(folder):
    """Names of all that lies below, longer than a word: those that could tell something."""
    return {name for _, folders, files in os.walk(folder) for name in folders + files if len(name) >= 16}


def slots(node):
    folder = node.environment()
    return sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def test_nothing_tells_one_person_what_another_has(far, two):
    """The same megabyte on both laptops: the second person's read costs as many bytes as the first's did, the caches have no name in
    common, and neither content nor names of one are visible to a task of the other."""
    ann, bea = two
    node = far.nodes[0]
    content = secrets.token_bytes(SIZE)
    name = "shared-" + secrets.token_hex(8)
    for laptop in two:
        put(laptop, f"/home/dev/{name}", content)
        laptop.vrun("true", check=0)  # what a first run brings is there before bytes are counted

    def read(laptop, path):
        before = laptop.traffic()
        done = laptop.vrun("cat", path)
        assert done.returncode == 0, done.stderr
        return done.stdout, laptop.traffic() - before

    first, _ = read(ann, f"/home/dev/{name}")
    second, cost_bea = read(bea, f"/home/dev/{name}")
    again, cost_again = read(bea, f"/home/dev/{name}")
    assert first == second == again == content
    # Output comes back over the same link, so a read is one megabyte at least; the fetch is the second.
    assert cost_bea > 2 * SIZE - SIZE // 10, "the fetch was skipped because somebody else had the bytes"
    assert cost_again < cost_bea - SIZE // 2, "the control: what a person has fetched is not fetched again"
    folders = slots(node)
    assert len(folders) == 2, folders
    common = names_below(folders[0]) & names_below(folders[1])
    assert not common, f"names of one cache are names of the other: {sorted(common)[:5]}"
    # Each has a folder of their own that nobody else can enter; what is the node's in common knows no name of it.
    assert all(path.startswith(tuple(map(str, folders))) for path in files_with(node.home, name.encode()))


def test_a_task_does_not_see_the_nodes_cache(far, two):
    ann, bea = two
    node = far.nodes[0]
    mark = secrets.token_bytes(3000)
    put(ann, "/home/dev/anns", mark)
    assert ann.vrun("cat", "/home/dev/anns").stdout == mark
    held = on_disk(node, mark)
    assert held, "the control: the node has it"
    for path in [*held, str(node.environment()), str(node.home)]:
        for reader in (ann, bea):
            done = reader.vrun("ls", path)
            assert done.returncode != 0, f"{path} is visible inside a task"
    # Nor does what is mounted tell the other's machine.
    mounts = bea.vrun("cat", "/proc/self/mountinfo").stdout
    assert str(node.environment()).encode() not in mounts
    assert b"anns" not in mounts


def test_daemons_of_two_people_are_two(far, two):
    for laptop in two:
        laptop.vrun("true", check=0)
    daemons = [pid for pid, name in processes_of(far.nodes[0].home) if " fsd" in name]
    assert len(daemons) == 2
    for path in slots(far.nodes[0]):
        assert os.stat(path).st_mode & 0o077 == 0, f"{path} is open to others"
