"""Commands on the cloud: run() waits for the end as subprocess.run does, submit() gives a handle at once."""
from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from typing import IO, Any, AsyncIterator, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _programs
from ._options import Options
from .errors import Refused, TaskCancelled, TaskFailed, VirgaError, describe_status

Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]
Stream = Callable[[str, str], None]  # ("stdout" or "stderr", a line)
Text = Union[str, bytes, None]
_END_GRACE_S = 10.0
_REFUSED = 125
_INTERRUPTED = 128 + signal.SIGINT
ENDED = ("succeeded", "failed", "cancelled")


def _words(command: Command) -> List[str]:
    """A command as its words; a text is for the shell, as it would be typed."""
    if isinstance(command, str):
        return ["sh", "-c", command]
    words = [os.fspath(word) for word in command]
    if not words:
        raise ValueError("no command given")
    return words


@dataclasses.dataclass(frozen=True)
class CompletedTask:
    """A command that has ended. `stdout` and `stderr` are None unless they were captured."""

    args: Sequence[str]
    status: int
    task_id: Optional[str] = None
    stdout: Any = None
    stderr: Any = None

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def returncode(self) -> int:
        """The name that subprocess has for it."""
        return self.status

    def reason(self) -> Optional[str]:
        """Why it ended as it did, in the cloud's words, where it has some."""
        text = _programs.task_info(self.task_id).get("reason")
        return str(text) if text else None

    def check(self) -> "CompletedTask":
        """Itself, or TaskFailed."""
        if self.status:
            info = _programs.task_info(self.task_id)
            kind = TaskCancelled if info.get("state") == "cancelled" else TaskFailed
            reason = info.get("reason") or _programs.sentence(self.stderr if isinstance(self.stderr, str) else "") or None
            raise kind(self.status, reason, self.task_id, f"'{' '.join(self.args)[:80]}'", self.stdout, self.stderr)
        return self

    def __repr__(self) -> str:
        return f"<CompletedTask {self.task_id or '-'} {' '.join(self.args)[:60]!r}: {describe_status(self.status)}>"


# ---------------------------------------------------------------------- a program while it runs


def _is_own(stream: Any, fd: int) -> bool:
    """Whether a stream of Python's is this process's descriptor, which a program would inherit; in notebooks it is not."""
    try:
        return bool(stream.fileno() == fd)
    except (AttributeError, OSError, ValueError):
        return False


class _Sink:
    """Where one stream of a program goes: kept, shown in this Python's own stream, told line by line."""

    def __init__(self, name: str, keep: bool, tell: Optional[Stream]) -> None:
        self.name, self.keep, self.tell = name, keep, tell
        self.shows = tell is None and not keep
        self.piped = not (self.shows and _is_own(getattr(sys, name), 1 if name == "stdout" else 2))
        self.parts: List[bytes] = []
        self.thread: Optional[threading.Thread] = None

    def read(self, source: IO[bytes]) -> None:
        """Until its end; lines as they come, and what is no whole line as it comes, too, when it is shown."""
        def run() -> None:
            for line in source:
                if self.keep:
                    self.parts.append(line)
                if self.tell:
                    self.tell(self.name, line.decode("utf-8", "replace").rstrip("\r\n"))
                elif self.shows:
                    getattr(sys, self.name).write(line.decode("utf-8", "replace"))
            source.close()

        self.thread = threading.Thread(target=run, name=f"virga-{self.name}", daemon=True)
        self.thread.start()


def _feed(proc: "subprocess.Popen[bytes]", data: bytes) -> None:
    def run() -> None:
        assert proc.stdin
        try:
            proc.stdin.write(data)
            proc.stdin.close()
        except (BrokenPipeError, OSError):
            pass  # it did not want all of it

    threading.Thread(target=run, name="virga-stdin", daemon=True).start()


def _read_id(fd: int) -> Optional[str]:
    with os.fdopen(fd, "rb") as f:
        return f.read(64).decode("ascii", "replace").strip() or None


class _Running:
    """A vrun and what it prints."""

    def __init__(self, command: Command, input: Text, stdin: Any, capture: bool, text: bool, stream: Optional[Stream],
                 options: Options) -> None:
        self.words, self.text = _words(command), text
        self.sinks = [_Sink("stdout", capture, stream), _Sink("stderr", capture, stream)]
        data = input.encode() if isinstance(input, str) else input
        if stdin is None and data is None and not _is_own(sys.stdin, 0):
            stdin = subprocess.DEVNULL
        self.at_terminal = stdin is None and data is None and os.isatty(0) and not any(s.piped for s in self.sinks)
        self.id_fd, id_w = os.pipe()
        argv = [_programs.program("vrun"), f"--id-file=/dev/fd/{id_w}", *options.arguments(), "--", *self.words]
        try:
            out, err = (subprocess.PIPE if s.piped else None for s in self.sinks)
            self.proc = subprocess.Popen(argv, stdin=subprocess.PIPE if data is not None else stdin, pass_fds=[id_w], stdout=out, stderr=err)
        except BaseException:
            os.close(self.id_fd)
            raise
        finally:
            os.close(id_w)
        for sink in self.sinks:
            source = getattr(self.proc, sink.name)
            if source:
                sink.read(source)
        if data is not None:
            _feed(self.proc, data)

    def kept(self, sink: _Sink) -> Any:
        data = b"".join(sink.parts)
        return None if not sink.keep else data.decode("utf-8", "replace") if self.text else data

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends vrun, which ends the task; kills it when that takes too long, which hangs the task up."""
        if self.proc.poll() is None:
            self.proc.send_signal(number)
            try:
                self.proc.wait(_END_GRACE_S)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()

    def wait(self, timeout: Optional[float] = None) -> CompletedTask:
        try:
            status = self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise TimeoutError(f"'{' '.join(self.words)[:80]}' had not ended after {timeout} s and was cancelled") from None
        except BaseException:  # Ctrl-C went to vrun, too, unless it was only meant for us
            self.end(signal.SIGINT)
            raise
        finally:
            task_id = _read_id(self.id_fd)
        for sink in self.sinks:
            if sink.thread:
                sink.thread.join()
        status = status if status >= 0 else 128 - status
        if status == _INTERRUPTED and self.at_terminal:
            raise KeyboardInterrupt  # the terminal was the task's: Ctrl-C went there alone, and was meant for this program, too
        if status == _REFUSED and not _programs.task_info(task_id):
            said = b"".join(self.sinks[1].parts).decode("utf-8", "replace")
            raise Refused(_programs.sentence(said) or "the cloud did not take it; vrun has said why")
        return CompletedTask(self.words, status, task_id, *(self.kept(sink) for sink in self.sinks))


def run(command: Command, *, input: Text = None, stdin: Any = None, capture: bool = False, text: bool = True,
        stream: Optional[Stream] = None, check: bool = False, timeout: Optional[float] = None, **options: Any) -> CompletedTask:
    """Runs a command on the cloud and waits for its end, as subprocess.run does here.

    A list is the command's words, a text is for the shell. What it prints appears here, or is kept with capture=True, or is
    told line by line to stream("stdout" | "stderr", line), which is called by other threads. check=True raises TaskFailed when it
    fails; Refused is raised when the cloud does not take it. The other options are those of vrun: pool, gpus, gpu_mem, cpus,
    mem, env, cwd, name, labels, secrets, project, max_cost, … (see Options)."""
    done = _Running(command, input, stdin, capture, text, stream, Options(**options)).wait(timeout)
    return done.check() if check else done


async def arun(command: Command, *, input: Text = None, capture: bool = False, text: bool = True, stream: Optional[Stream] = None,
               check: bool = False, timeout: Optional[float] = None, **options: Any) -> CompletedTask:
    """run() for `await`: the loop goes on meanwhile. Cancelling the await cancels the task. It reads no standard input."""
    import asyncio
    stdin = None if input is not None else subprocess.DEVNULL
    running = _Running(command, input, stdin, capture, text, stream, Options(**options))
    try:
        done: CompletedTask = await in_thread(running.wait, timeout)
    except asyncio.CancelledError:
        await in_thread(running.end)
        raise
    return done.check() if check else done


async def in_thread(func: Callable[..., Any], *args: Any) -> Any:
    """Something that blocks, in a thread of its own: the loop's pool of threads is small, and tasks are long."""
    import asyncio  # here and below only: it takes as long to import as all the rest, and workers do not need it
    loop = asyncio.get_running_loop()
    done: "asyncio.Future[Any]" = loop.create_future()

    def tell(result: Any, error: Optional[BaseException]) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

    def work() -> None:
        try:
            result, error = func(*args), None
        except BaseException as e:  # noqa: BLE001 - told to whoever awaits
            result, error = None, e
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody awaits

    threading.Thread(target=work, name="virga-await", daemon=True).start()
    return await done


# ---------------------------------------------------------------------- tasks that nobody waits at


class Task:
    """A task of the cloud, by its id. Nothing is asked before it is needed; what has ended is not asked for again."""

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self._info: Dict[str, Any] = {}

    def __repr__(self) -> str:
        state = self._info.get("state")
        return f"<Task {self.id}{' ' + str(state) if state else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def info(self) -> Dict[str, Any]:
        """All that `virga task get -o json` shows."""
        if self._info.get("state") not in ENDED:
            self._info = _programs.virga_json("task", "get", self.id)
        return self._info

    @property
    def state(self) -> str:
        return str(self.info()["state"])

    @property
    def status(self) -> Optional[int]:
        """The exit status; None before the end."""
        status = self.info().get("status")
        return None if status is None else int(status)

    @property
    def reason(self) -> Optional[str]:
        text = self.info().get("reason")
        return str(text) if text else None

    @property
    def cost(self) -> float:
        """What it has cost until now, in the cloud's currency. To the last unit: `virga cost --task ID -o json`."""
        return int(_programs.virga_json("cost", "--task", self.id)["total"]["cost_micro"]) / 1e6

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits for the end; the exit status. TimeoutError when there is none within `timeout` seconds."""
        argv = [_programs.program("virga"), "task", "wait", self.id]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout,
                                  check=False)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"task {self.id} had not ended after {timeout} s") from None
        if self.state not in ENDED:
            raise VirgaError(_programs.sentence(done.stderr.decode("utf-8", "replace")))
        return self.info()["status"] or 0

    def result(self, timeout: Optional[float] = None) -> CompletedTask:
        """Waits for the end; what it printed, or TaskFailed."""
        status = self.wait(timeout)
        out, err = self.output()
        return CompletedTask(self.info().get("argv") or [], status, self.id, out, err).check()

    def output(self) -> Tuple[str, str]:
        """What it has printed until now: (stdout, stderr)."""
        done = subprocess.run([_programs.program("virga"), "task", "logs", self.id], stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", errors="replace", check=False)
        if done.returncode:
            raise Refused(_programs.sentence(done.stderr))
        return done.stdout, done.stderr

    def _logs(self, follow: bool) -> List[str]:
        return [_programs.program("virga"), "task", "logs", *(["--follow"] if follow else []), self.id]

    def logs(self, follow: bool = False) -> Iterator[str]:
        """Lines of what it printed, both streams as they came; follow=True goes on until the task ends."""
        with subprocess.Popen(self._logs(follow), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as proc:
            assert proc.stdout
            try:
                for line in proc.stdout:
                    yield line.decode("utf-8", "replace").rstrip("\r\n")
            finally:
                if proc.poll() is None:
                    proc.terminate()

    async def alogs(self, follow: bool = True) -> AsyncIterator[str]:
        """logs() for `async for`."""
        import asyncio
        proc = await asyncio.create_subprocess_exec(*self._logs(follow), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                    stderr=subprocess.STDOUT, limit=1 << 22)
        assert proc.stdout
        try:
            async for line in proc.stdout:
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        finally:
            if proc.returncode is None:
                try:
                    proc.terminate()
                except ProcessLookupError:
                    pass
            await proc.wait()

    async def await_(self, timeout: Optional[float] = None) -> int:
        """wait() for `await`."""
        return int(await in_thread(self.wait, timeout))

    def __await__(self) -> Any:
        return self.await_().__await__()

    def cancel(self, grace: Optional[float] = None) -> None:
        """Ends it: TERM, then KILL. Of what has ended already, nothing."""
        words = ["--grace", f"{round(grace * 1000)}ms"] if grace is not None else []
        try:
            _programs.virga("task", "cancel", *words, self.id)
        except Refused:
            if self.state not in ENDED:
                raise


def submit(command: Command, *, retries: int = 0, shards: int = 0, gang: bool = False, after: Sequence[Union[str, Task]] = (),
           after_success: Sequence[Union[str, Task]] = (), key: Optional[str] = None, **options: Any) -> Task:
    """Queues a command, as vbatch does, and gives a handle of it at once. The options are those of run(), and: how often to try again
    when it fails; a group of so many shards, or a gang of them; after which tasks; a key that makes a second submission find the first."""
    argv = [_programs.program("vbatch"), "-q", *Options(**options).arguments()]
    argv += [f"--retries={retries}"] if retries else []
    argv += [f"--shards={shards}"] if shards else []
    argv += ["--gang"] if gang else []
    argv += [f"--key={key}"] if key else []
    for option, tasks in (("--after", after), ("--after-success", after_success)):
        argv += [f"{option}={t.id if isinstance(t, Task) else t}" for t in tasks]
    done = subprocess.run([*argv, "--", *_words(command)], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                          errors="replace", check=False)
    if done.returncode:
        raise Refused(_programs.sentence(done.stderr) or f"vbatch failed with status {done.returncode}")
    return Task(done.stdout.strip())
