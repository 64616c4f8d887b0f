"""Completion scripts: made from the command tables, so they must know every option, and they must be good shell."""
import shutil
import subprocess

import pytest

ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
case $1 in vrun) _virga_vrun;; vbatch) _virga_vbatch;; *) _virga;; esac
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(cloud):
    path = cloud.work / "completion.bash"
    path.write_text(cloud.out("virga", "completion", "bash"))
    return path


def complete(cloud, script, *words):
    done = cloud.run(["bash", "-c", ASK, "bash", str(script), *words], check=0)
    return done.stdout.decode().split()


@pytest.mark.parametrize("words,want", [
    (["vbatch", "--swe"], ["--sweep"]),
    (["vbatch", "--after"], ["--after", "--after-success", "--after-fail"]),
    (["vbatch", "--gang-policy", ""], ["heal", "restart", "fail"]),
    (["vrun", "--swe"], []),
    (["vrun", "--gpu"], ["--gpus", "--gpu-mem", "--gpu-hard", "--gpu-model"]),
    (["virga", "que"], ["queue"]),
    (["virga", "task", "wh"], ["why"]),
    (["virga", "task", "list", "--se"], ["--search"]),
    (["virga", "schedule", ""], ["list", "remove"]),
    (["virga", "config", ""], ["check", "reload"]),
    (["virga", "batch", "--cro"], ["--cron"]),
], ids=" ".join)
def test_words_are_completed(cloud, script, words, want):
    assert complete(cloud, script, *words) == want


def test_tasks_are_asked_from_the_cloud(cloud, script):
    task = cloud.out("vbatch", "sleep", "60")
    assert task in complete(cloud, script, "virga", "task", "why", "")
    assert complete(cloud, script, "vbatch", "--after", task[:6]) == [task]
    cloud.virga("task", "cancel", task, check=0)


def test_files_are_offered_where_a_file_is_wanted(cloud, script):
    (cloud.work / "some-config.yaml").touch()
    assert complete(cloud, script, "virga", "config", "check", "some-c") == ["some-config.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_good_shell(cloud, shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    text = cloud.run(["virga", "completion", shell], check=0).stdout
    path = cloud.work / f"completion.{shell}"
    path.write_bytes(text)
    done = subprocess.run([shell, "-n", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
