"""`virga notebook`: arguments, token, port and end with a program that stands for Jupyter; JupyterLab itself in the long form."""
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from test_mirror_secrets import files_with
from virga import LONG

# Answers as Jupyter does where it matters: /api to anybody, the rest for the token; ends with SIGINT or SIGTERM.
STAND_IN = f"""#!{sys.executable}
import http.server, json, os, signal, sys
port = [int(a.split('=')[1]) for a in sys.argv if a.startswith('--port=')][0]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.path == '/api' or self.path.endswith('token=' + os.environ['JUPYTER_TOKEN'])
        self.send_response(200 if good else 403)
        self.end_headers()
        self.wfile.write(json.dumps({{'argv': sys.argv[1:], 'cwd': os.getcwd()}}).encode())
    def log_message(self, *args):
        pass
def end(*args):
    print('ended well', flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()
"""


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


class Notebook:
    """A running `virga notebook`, in a process group of its own, as a terminal would have it."""

    def __init__(self, cloud, path, *argv, cwd=None):
        self.p = cloud.popen(["virga", "notebook", *argv], cwd=cwd or cloud.work, env={**cloud.env, "PATH": f"{path}:{cloud.env['PATH']}"},
                             start_new_session=True)
        self.url = self.p.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://localhost:\d+/\?token=[0-9a-f]{48}", self.url), (self.url, self.p.stderr.read())
        self.token = self.url[-48:]

    def end(self, signo=signal.SIGINT, group=True):
        (os.killpg if group else os.kill)(self.p.pid, signo)
        out, err = self.p.communicate(timeout=60)
        return self.p.returncode, out, err


@pytest.fixture(scope="module")
def bin(cloud):
    folder = cloud.work / "bin"
    folder.mkdir()
    (folder / "jupyter-lab").write_text(STAND_IN)
    (folder / "jupyter-lab").chmod(0o755)
    return folder


def test_it_answers_with_its_token_and_ends_with_ctrl_c(cloud, bin):
    n = Notebook(cloud, bin, "--cpus", "1", str(cloud.work), cwd="/")
    told = json.loads(get(n.url))
    assert told["cwd"] == str(cloud.work)
    assert {"--no-browser", "--ip=127.0.0.1", "--port-retries=0", "--allow-root"} <= set(told["argv"])
    with pytest.raises(urllib.error.HTTPError):
        get(n.url[:-1] + "x")
    task, = cloud.json("task", "list")
    assert task["name"] == "notebook"
    assert n.token not in cloud.virga("task", "get", task["id"], "-o", "json", check=0).stdout.decode()
    assert n.end() == (0, b"ended well\n", b"")
    assert not files_with(cloud.home, n.token.encode())
    with pytest.raises(urllib.error.URLError):
        get(n.url)


def test_two_at_once_have_ports_of_their_own(cloud, bin):
    a, b = Notebook(cloud, bin), Notebook(cloud, bin)
    assert a.url.split("?")[0] != b.url.split("?")[0]
    assert get(a.url) and get(b.url)
    assert a.end(signal.SIGTERM, group=False)[0] == 0
    assert get(b.url)
    assert b.end()[0] == 0


def test_what_cannot_be_is_said_in_a_sentence(cloud, bin):
    done = cloud.virga("notebook", env={**cloud.env, "PATH": f"{os.path.dirname(cloud.out('sh', '-c', 'command -v virga'))}:/usr/bin:/bin"})
    assert done.returncode == 127 and b"'pip install jupyterlab'" in done.stderr
    assert b"takes one folder" in cloud.virga("notebook", "a", "b").stderr
    assert b"has no --detach" in cloud.virga("notebook", "-d").stderr
    assert b"no pool 'nowhere'" in cloud.virga("notebook", "-P", "nowhere").stderr


@pytest.mark.skipif(not LONG, reason="JupyterLab comes from PyPI; VIRGA_TEST_LONG=1 fetches it")
def test_the_real_one(cloud):
    venv = cloud.work / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if subprocess.run([str(venv / "bin" / "pip"), "install", "-q", "jupyterlab"], check=False).returncode:
        pytest.skip("PyPI does not answer")
    n = Notebook(cloud, venv / "bin")
    base = n.url.split("?")[0]
    assert b"JupyterLab" in get(n.url)
    with pytest.raises(urllib.error.HTTPError):
        get(base + "api/contents?token=wrong")
    contents = json.loads(get(base + f"api/contents?token={n.token}"))
    assert "venv" in {c["name"] for c in contents["content"]}
    status, _out, err = n.end()
    assert status == 0, err
    assert not files_with(cloud.home, n.token.encode())
