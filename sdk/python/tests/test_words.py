"""Keyword arguments as words and as JSON, and streams of events, without a cloud."""
import datetime
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
from virga import Options, TaskCancelled, TaskFailed, _programs, client, magics  # noqa: E402
from virga._http import Event, parse_events  # noqa: E402
from virga.errors import VirgaError  # noqa: E402


class Words(unittest.TestCase):
    def test_as_vrun_takes_them(self):
        options = Options(pool="a", gpus=0.25, gpu_mem="20G", cpus=1.5, mem=1 << 20, env={"K": "v w"}, cwd="/x", name="n", labels={"a": "b"},
                          secrets=["s"], project="p", max_cost=0.1, time_limit=datetime.timedelta(minutes=1), preemptible=True, priority=0, sync=True)
        self.assertEqual(sorted(options.arguments()), sorted([
            "--pool=a", "--gpus=0.25", "--gpu-mem=20G", "--cpus=1.5", "--mem=1048576", "-e", "K=v w", "--directory=/x", "--name=n", "--label=a=b",
            "--secret=s", "--project=p", "--max-cost=0.1", "--time=60000ms", "--preemptible", "--priority=0", "--sync"]))
        self.assertEqual(Options().arguments(), [])
        self.assertEqual(Options(image="debian:12", sync=True).arguments(), ["--image=debian:12"])

    def test_mistakes_are_told_before_anything_runs(self):
        for wrong, kind in (({"secrets": "one"}, TypeError), ({"writable": "/x"}, TypeError), ({"gpu": 1}, TypeError)):
            with self.assertRaises(kind):
                Options(**wrong)
        for wrong in ({"": "x"}, {"a=b": "x"}):
            with self.assertRaises(ValueError):
                Options(env=wrong).arguments()

    def test_changes_add_to_what_is_there(self):
        options = Options(pool="a", labels={"a": "1"}).replace(pool="b", labels={"b": "2"})
        self.assertEqual((options.pool, options.labels), ("b", {"a": "1", "b": "2"}))

    def test_as_rest_takes_them(self):
        body = client.task_body(["true"], Options(gpus=0.25, cpus="0.5", mem="1.5G", gpu_mem=7, max_cost="12.50", time_limit="1h30m", env={"A": "b"},
                                                  secrets=("s",)), {"retries": 2})
        self.assertEqual(body, {"argv": ["true"], "want": {"gpu_milli": 250, "cpu_milli": 500, "mem_bytes": 3 << 29, "gpu_mem_bytes": 7},
                                "max_cost_micro": 12500000, "time_limit_usec": 5400000000, "env": {"A": "b"}, "secrets": ["s"], "retries": 2})
        self.assertEqual(client.task_body(["x"], Options(gpus=2), {})["want"], {"gpus": 2})
        self.assertEqual(client._micro(0.1), 100000)
        for bad in ("", "5x", "1h-", "abc"):
            with self.assertRaises(ValueError):
                client._usec(bad)
            with self.assertRaises(ValueError):
                client._bytes(bad)

    def test_of_a_magic(self):
        options, said = magics.parse("-P a --gpus 1 -l k=v -e A=b=c --time 1h -- echo -n hi")
        self.assertEqual((options.pool, options.gpus, options.labels, options.env, options.time_limit), ("a", "1", {"k": "v"}, {"A": "b=c"}, "1h"))
        self.assertEqual(said.command, ["echo", "-n", "hi"])
        for bad in ("--nope", "-e novalue", "--priority x true"):
            with self.assertRaises(VirgaError):
                magics.parse(bad)

    def test_what_a_program_says_without_its_name(self):
        self.assertEqual(_programs.sentence("vrun: one\nvrun: two\n"), "two")
        self.assertEqual(_programs.sentence(""), "")


class Told(unittest.TestCase):
    def test_events_of_a_stream(self):
        lines = b': ping\n\nevent: task\ndata: {"a":\ndata: 1}\n\nevent: odd\n\ndata: []\r\n\r\nevent: cut\ndata: 1\n'.splitlines(True)
        self.assertEqual(list(parse_events(iter(lines))), [Event("task", {"a": 1}), Event("message", [])])

    def test_failures_read_as_sentences(self):
        import pickle
        e = TaskFailed(137, "it used more memory than its limit", "5f0c", "train")
        self.assertEqual(str(e), "train 5f0c failed (killed by SIGKILL): it used more memory than its limit")
        self.assertEqual((e.signal, TaskFailed(3).signal, str(TaskFailed(3))), (9, None, "the task failed (exit status 3)"))
        self.assertEqual(str(TaskCancelled(143, None, "5f0c")), "the task 5f0c was cancelled")
        self.assertEqual(str(pickle.loads(pickle.dumps(e))), str(e))


if __name__ == "__main__":
    unittest.main()
