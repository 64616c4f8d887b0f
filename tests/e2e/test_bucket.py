"""Environments that are kept in a bucket (s3.py): what is stored is there, comes back from there when virgad's disk is
gone, and goes when it is removed; a bucket that fails is told of."""
import os
import shutil

import oci
import pytest
import s3
from test_env import exported, image, check_flat, imported, rootfs, wait_for  # noqa: F401  (rootfs is a fixture)
from virga import Cloud


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A cloud and its bucket, which speaks TLS."""
    tmp = tmp_path_factory.mktemp("bucket")
    authority = oci.Authority(tmp)
    bucket = s3.Bucket(page=7, authority=authority)
    credentials = tmp / "credentials"
    credentials.write_text(f"[default]\naws_access_key_id = {s3.KEY_ID}\naws_secret_access_key = {s3.SECRET}\n")
    credentials.chmod(0o600)
    c = Cloud(config=f"env: {{store: 's3://envs/cloud', endpoint: '{bucket.url}', region: {s3.REGION}, ca: {authority.ca}, "
                     f"credentials: {credentials}, cache: 64M}}\n")
    c.bucket, c.credentials = bucket, credentials
    c.up()
    yield c
    c.down()
    c.remove()
    bucket.close()


def contents(bucket):
    return [k for k in bucket.objects if "/dat/" in k or "/rec/" in k]


def again(cloud, lose):
    cloud.down()
    if lose:
        name = (cloud.home / "control/env/cloud").read_text()
        shutil.rmtree(cloud.home / "control/env")
        (cloud.home / "control/env").mkdir(mode=0o700)
        (cloud.home / "control/env/cloud").write_text(name)  # as the sentence about another cloud says
    cloud.up()


def test_what_is_kept_outlives_virgads_disk(world, rootfs, tmp_path):  # noqa: F811
    imported(world, rootfs, tmp_path, "tools", {"WorkingDir": "/srv"})
    image().write_layout(str(tmp_path / "flat"))
    world.virga("env", "import", str(tmp_path / "flat"), "-n", "lab/flat", check=0)
    assert not world.bucket.refused, world.bucket.refused
    assert {k for k in world.bucket.objects if "/env/" in k} == {"cloud/u/root/env/tools/1", "cloud/u/root/env/lab%2fflat/1"}
    assert not os.path.exists(f"{world.home}/control/env/u/root/tmp/x")
    again(world, lose=True)
    check_flat(*exported(world, "lab/flat", tmp_path))
    r = world.vrun("--env", "tools", "tool", "/etc/hello")
    assert r.returncode == 7 and r.stdout.endswith(b"hello\n"), r.stderr
    assert not world.bucket.refused, world.bucket.refused


def test_a_bucket_that_is_away_hurts_only_what_needs_it(world, rootfs, tmp_path):  # noqa: F811
    imported(world, rootfs, tmp_path, "here")
    world.bucket.faults = [{"kind": "drop", "times": 10 ** 6}]
    again(world, lose=False)
    r = world.vrun("--env", "here", "/bin/tool", "/etc/hello")  # its contents lie beside virgad
    assert r.returncode == 7 and r.stdout.endswith(b"hello\n"), r.stderr
    world.bucket.faults = [{"method": "PUT", "kind": 403, "times": 10 ** 6}]
    oci.Image([oci.layer({"new": os.urandom(1000)})]).write_layout(str(tmp_path / "new"))
    r = world.virga("env", "import", str(tmp_path / "new"), "-n", "new")
    assert r.returncode == 125 and b"cannot save environment 'new': s3://envs/cloud does not let us in" in r.stderr, r.stderr
    assert "new" not in [e["name"] for e in world.json("env", "list")]
    world.bucket.faults = [{"kind": 503, "times": 3}, {"kind": "drop", "times": 2}, {"method": "PUT", "kind": 500, "times": 2}]
    world.virga("env", "import", str(tmp_path / "new"), "-n", "new", check=0)
    assert "new" in [e["name"] for e in world.json("env", "list")]
    world.bucket.faults = []


def test_a_bucket_of_another_cloud_is_left_alone(world):
    other = Cloud(config=(world.home / "config.yaml").read_text())
    before = dict(world.bucket.objects)
    try:
        other.up()
        r = other.virga("env", "list")
        assert r.returncode == 125 and b"s3://envs/cloud belongs to another cloud" in r.stderr, r.stderr
        world.credentials.chmod(0o644)
        other.down()
        other.up()
        r = other.virga("env", "list")
        assert r.returncode == 125 and b"others may read it: 'chmod 600" in r.stderr, r.stderr
    finally:
        world.credentials.chmod(0o600)
        other.down()
        other.remove()
    assert world.bucket.objects == before


def test_removing_empties_the_bucket(world):
    for name in {e["name"] for e in world.json("env", "list")}:
        world.virga("env", "rm", name, check=0)
    again(world, lose=False)  # what nodes still had open is let go
    assert world.json("env", "list") == []
    wait_for("the collection", lambda: contents(world.bucket) == [])
    assert not [k for k in world.bucket.objects if "/env/" in k] and not world.bucket.uploads
    assert not world.bucket.refused, world.bucket.refused


def test_a_wrong_store_in_the_configuration_is_named(world):
    for config, says in (("env: {store: /srv/envs}", b"'env.store' is '/srv/envs'"),
                         ("env: {endpoint: 'ftp://x'}", b"'env.endpoint' is 'ftp://x'")):
        path = world.home / "other.yaml"
        path.write_text(config + "\n")
        r = world.virga("config", "check", str(path))
        assert r.returncode != 0 and says in r.stdout + r.stderr, (r.stdout, r.stderr)
