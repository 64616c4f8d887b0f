"""Somebody on another machine: a login and nothing else."""
import json


class Remote:
    """Somebody on another machine: a folder of his own with a login, nothing else."""

    def __init__(self, cloud, folder, token):
        self.cloud = cloud
        self.env = {k: v for k, v in cloud.env.items() if not k.startswith("VIRGA_")} | {"VIRGA_HOME": str(folder)}
        self.home = folder
        folder.mkdir(exist_ok=True)
        address = (cloud.home / "control" / "address").read_text().strip()
        self.virga("login", address, "--token", token, check=0)

    def run(self, *argv, **kw):
        return self.cloud.run(list(argv), env=self.env, **kw)

    def virga(self, *argv, **kw):
        return self.run("virga", *argv, **kw)

    def json(self, *argv):
        return json.loads(self.virga(*argv, "-o", "json", check=0).stdout)

    def refused(self, *argv):
        done = self.virga(*argv)
        assert done.returncode != 0, done.stdout
        return done.stderr.decode()


def token_for(cloud, user, *more):
    return cloud.out("virga", "token", "create", "--user", user, *more).strip()
