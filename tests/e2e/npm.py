"""Tools that tests need from npm: installed once in tests/node, by the versions of its lock file."""
import os
import shutil
import subprocess

import pytest
from virga import ROOT

NODE = ROOT / "tests" / "node"


def tools(package):
    """Makes sure that the package is there; skips, with the reason, where npm's registry cannot be reached."""
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("node and npm are needed (tools/bootstrap installs them)")
    stamp, lock = NODE / "node_modules" / ".installed", NODE / "package-lock.json"
    if not (NODE / "node_modules" / package).is_dir() or not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        done = subprocess.run(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"], cwd=NODE, capture_output=True, timeout=300,
                              env=os.environ | {"PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"})
        text = (done.stdout + done.stderr).decode(errors="replace")
        if done.returncode and any(w in text for w in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "network")):
            pytest.skip(f"npm's registry cannot be reached: {text.strip().splitlines()[-1]}")
        assert done.returncode == 0, text
        stamp.write_bytes(lock.read_bytes())
    return NODE
