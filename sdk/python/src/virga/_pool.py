"""Calls and the workers that answer them.

A worker is a task that takes many calls, one after the other. Workers are started when there are calls that no worker is free for, up to
a number; they leave when there has been nothing to do for a while. Every worker has one thread here, which alone speaks to it.

What always holds: a call is in `waiting`, or in the `given` of one worker, or done. A worker gets calls only when it has said hello, so
that calls never wait for one that is queued while another is free. A worker answers in order: of what it was given, the first runs.
When it dies, the first is the one that may have done it; the others go back, unharmed.
"""
from __future__ import annotations

import atexit
import collections
import concurrent.futures
import hashlib
import os
import sys
import threading
import time
import weakref
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

from . import _codec, _frames, _programs, _worker
from ._channel import Channel, setup_body
from ._options import Options
from ._printer import Printer, Show
from .errors import (Refused, RemoteError, RemoteTraceback, SerializationError, TaskCancelled, TaskFailed, VersionMismatch, VirgaError)

REFUSED = 125
LOSSES_MOST = 5  # so often a call moves on because the cloud took its worker away, and as often as `retries` says if that is more
_AHEAD_S = 0.05  # a worker has calls for so long at hand, at most
_AHEAD_MOST = 16
_AHEAD_BYTES = 1 << 20
_CANCEL_S = 0.1  # a call that was cancelled may end by itself so long: a new worker costs more
_LEAVE_S = 30.0  # at the end of the program
_SLOTS = 64  # functions that a worker keeps; one that is not among them is sent again


class Definition(NamedTuple):
    """A function as workers get it: they keep the last that came for each slot."""

    slot: int
    digest: bytes
    packed: List[_frames.Buffer]


_NOTHING = Definition(0, b"", [])


class Call(concurrent.futures.Future):  # type: ignore[type-arg]
    """A call that is on its way. As any concurrent.futures.Future; cancel() also ends one that runs."""

    def __init__(self, pool: "Pool", function: Definition, body: List[_frames.Buffer], what: str) -> None:
        super().__init__()
        self._pool, self._function, self._body, self._what = pool, function, body, what
        self._worker: Optional[Worker] = None
        self._deaths = self._losses = 0
        self._end_by = 0.0  # when it was cancelled
        self.task_id: Optional[str] = None  # the task that runs or ran it

    def running(self) -> bool:
        return self._worker is not None and not self.done()

    def cancel(self) -> bool:
        with self._pool.lock:
            if self.cancelled():
                return True
            if not super().cancel():
                return False
            self.set_running_or_notify_cancel()
            self._pool.drop(self)
            return True

    def settle(self, value: Any = None, error: Optional[BaseException] = None) -> None:
        """The end of it, unless it was cancelled meanwhile."""
        self._body, self._function = [], _NOTHING
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "done" if self.done() else "running" if self.running() else "waiting"
        return f"<Call {self._what} {state}{' on ' + self.task_id if self.task_id else ''}>"


def revive(body: bytearray) -> BaseException:
    """The exception that a worker described, with its traceback as the cause."""
    try:
        packed, name, message, text = _codec.unpack(body)
    except Exception as e:  # noqa: BLE001
        return SerializationError(f"the worker's answer cannot be read: {e}")
    error: BaseException = RemoteError(name, message, text)
    if packed:
        try:
            error = _codec.unpack(bytearray(packed))
        except Exception:  # noqa: BLE001 - then as text
            pass
    error.__cause__ = RemoteTraceback(text)
    return error


class Worker:
    def __init__(self, pool: "Pool", number: int, quiet: bool) -> None:
        self.pool, self.number, self.quiet = pool, number, quiet
        self.given: Deque[Tuple[int, Call]] = collections.deque()
        self.channel: Optional[Channel] = None
        self.ready = self.leaving = self.lost = self.ended = self.waits = False
        self.error: Optional[BaseException] = None  # why it will never be ready
        self.defined: Dict[int, bytes] = {}
        self.calls = 0
        self.pace: Optional[float] = None  # seconds a call, lately
        self.last = self.idle_since = time.monotonic()
        self.thread = threading.Thread(target=self.run, name=f"virga-worker-{number}", daemon=True)

    # ------------------------------------------------------------------ from any thread

    def wake(self) -> None:
        if self.channel:
            self.channel.wake()

    def end(self) -> None:
        self.ended = True
        if self.channel:
            self.channel.end()
            self.channel.wake()

    # ------------------------------------------------------------------ its own

    def run(self) -> None:
        status = 0
        try:
            self.channel = Channel(self.pool.options, self.quiet)
            if self.ended:
                self.channel.end()
            status = self.serve(self.channel)
        except BaseException as e:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            self.error = e
        finally:
            if self.channel:
                self.pool.printer.flush(self.number)
                self.channel.close()
            self.pool.gone(self, status)

    def serve(self, channel: Channel) -> int:
        while True:
            if self.ready and not self.leaving:
                self.fill(channel)
            timeout = self.patience()
            if timeout is not None and timeout <= 0:
                if self.given:
                    self.given[0][1].settle(error=TimeoutError(f"{self.given[0][1]._what} had not returned after {self.pool.timeout_s} s"))
                    self.end()
                elif self.pool.leave(self):
                    self.leaving = True
                    channel.close_input()
                continue
            for what, number, body in channel.step(timeout):
                if what == "end":
                    return int(number)
                self.hear(channel, what, number, body)

    def patience(self) -> Optional[float]:
        """How long it may take until its next word; None: for ever. Then it leaves, or is ended."""
        if self.leaving or self.ended or not self.ready:
            return None
        if self.given:
            call = self.given[0][1]
            due = call._end_by if call.cancelled() else self.last + self.pool.timeout_s if self.pool.timeout_s else None
            return None if due is None else due - time.monotonic()
        if self.pool.closing:
            return 0.0
        return self.idle_since + self.pool.idle_s - time.monotonic()

    def ahead(self, channel: Channel) -> int:
        """How many calls it may have at hand: more than one only where they are so short that the way to it counts."""
        if self.pace is None or len(channel.queued) > 8 or sum(map(len, channel.queued)) > _AHEAD_BYTES:
            return 1
        return max(1, min(_AHEAD_MOST, int(_AHEAD_S / max(self.pace, 1e-6))))

    def fill(self, channel: Channel) -> None:
        while len(self.given) < self.ahead(channel):
            call = self.pool.take(self)
            if call is None:
                return
            function = call._function
            if self.defined.get(function.slot) != function.digest:
                self.defined[function.slot] = function.digest
                channel.send(_frames.DEFINE, b=function.slot, body=function.packed)
            self.calls += 1
            if not self.given:
                self.last = time.monotonic()
            call.task_id = channel.task_id
            self.given.append((self.calls, call))
            channel.send(_frames.CALL, self.calls, function.slot, call._body)

    def hear(self, channel: Channel, what: str, number: Any, body: Any) -> None:
        if what in ("stdout", "stderr"):
            self.pool.printer.feed(self.number, what, bytes(body))
        elif what == "words":
            if not self.ready:  # that it waits; what comes later is the reason of its end
                make_room(self.pool)
                if not self.quiet and not self.ended:
                    self.waits = True
                    self.pool.printer.tell("stderr", body)
        elif what == "hello":
            self.greet(channel, _codec.unpack(body))
        elif what in ("result", "error") and self.given and self.given[0][0] == number:
            self.answer(what == "result", body)
        elif what == "broken":
            self.error = revive(body)
        elif what == "odd":
            self.lost = True
            channel.end()

    def greet(self, channel: Channel, about: Dict[str, Any]) -> None:
        if self.ready:  # the cloud started the task again; what the first attempt had read is gone
            self.lost = True
            channel.end()
            return
        if tuple(about["python"]) != _codec.PYTHON:
            there = ".".join(map(str, about["python"][1]))
            here = ".".join(map(str, _codec.PYTHON[1]))
            self.error = VersionMismatch(f"the task has Python {there} and this is Python {here}: use an environment with the same one")
            channel.end()
            return
        channel.task_id = about["task_id"] or channel.task_id
        if self.waits:
            self.pool.printer.tell("stderr", f"virga: task {channel.task_id} began after {time.monotonic() - self.last:.0f} s\n")
        channel.words = ""  # that it was queued is no reason for anything that comes
        channel.send(_frames.SETUP, body=self.pool.setup())
        self.idle_since = time.monotonic()
        self.ready = True

    def answer(self, good: bool, body: bytearray) -> None:
        now = time.monotonic()
        took, self.last = now - self.last, now
        self.pace = took if self.pace is None else 0.7 * self.pace + 0.3 * took
        self.pool.printer.flush(self.number)
        _, call = self.given.popleft()
        self.idle_since = now
        if self.given:  # the next one runs now; if it was cancelled while it waited, its moment begins
            self.given[0][1]._end_by = now + _CANCEL_S
        if not good:
            self.pool.failed(call, revive(body))
            return
        try:
            value = _codec.unpack(body)
        except Exception as e:  # noqa: BLE001 - somebody's __setstate__ may raise anything
            call.settle(error=SerializationError(f"the result of {call._what} cannot be read here: {e}"))
            return
        call.settle(value)


class Pool:
    """Workers of one kind, and the calls for them."""

    def __init__(self, options: Options, max_workers: Optional[int] = None, idle_s: float = 2.0, retries: int = 0,
                 retry_on: Sequence[Type[BaseException]] = (), show: Optional[Show] = None, what: str = "a function",
                 timeout_s: Optional[float] = None) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("there has to be one worker at least")
        self.options, self.idle_s, self.retries, self.retry_on, self.what = options, idle_s, retries, tuple(retry_on), what
        self.max_workers, self.timeout_s = max_workers, timeout_s
        self.printer = Printer(show)
        self.lock = threading.RLock()
        self.waiting: Deque[Call] = collections.deque()
        self.workers: Dict[int, Worker] = {}
        self.idle: Dict[int, Worker] = {}
        self.functions: Dict[bytes, Definition] = {}  # the newest of each slot
        self.defined = 0
        self.started = 0
        self.closing = False
        self._setup: Optional[List[_frames.Buffer]] = None
        self.empty = threading.Condition(self.lock)
        _pools.add(self)

    # ------------------------------------------------------------------ for callers

    def define(self, func: Any, what: str) -> Definition:
        """A function as it is now; the same as before when nothing of it has changed."""
        if _worker.importing_main:
            raise VirgaError("this script calls the cloud while it is imported: put what starts things below "
                             "'if __name__ == \"__main__\":', as for multiprocessing")
        packed = _codec.pack(func, what)
        digest = hashlib.sha256(b"".join(packed)).digest()
        with self.lock:
            found = self.functions.get(digest)
            if found is None:
                found = self.functions[digest] = Definition(self.defined % _SLOTS, digest, packed)
                self.defined += 1
                if len(self.functions) > _SLOTS:
                    del self.functions[next(iter(self.functions))]  # the oldest, whose slot this is
            return found

    def submit(self, function: Definition, args: Sequence[Any], kwargs: Dict[str, Any], what: str) -> Call:
        call = Call(self, function, _codec.pack((tuple(args), kwargs), f"an argument of {what}"), what)
        most = self.most()
        self.setup()  # now: when the program has come to its end, Python has forgotten where its script is
        with self.lock:
            if self.closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self.waiting.append(call)
            self.staff(most)
        return call

    def most(self) -> int:
        if self.max_workers is None:
            self.max_workers = _programs.slots(self.options.pool)
        return self.max_workers

    def setup(self) -> List[_frames.Buffer]:
        if self._setup is None:
            self._setup = setup_body()
        return self._setup

    def drop(self, call: Call) -> None:
        """Forgets a call that was cancelled. One that runs has a moment to end by itself; then its worker is ended."""
        with self.lock:
            if call in self.waiting:
                self.waiting.remove(call)
                self.empty.notify_all()
            elif call._worker is not None:
                call._end_by = time.monotonic() + _CANCEL_S
                call._worker.wake()

    def close(self, wait: bool = True, cancel_waiting: bool = False, timeout: Optional[float] = None) -> None:
        """No more calls: workers leave when there is nothing left to do."""
        with self.lock:
            self.closing = True
            dropped = list(self.waiting) if cancel_waiting else []
            for call in dropped:
                call.cancel()
            for worker in self.workers.values():
                if not self.waiting and not worker.ready:
                    worker.end()  # it waits for a place that nobody needs
                worker.wake()
            if wait:
                self.empty.wait_for(lambda: not self.workers, timeout)

    def kill(self) -> None:
        """Cancels everything and ends every worker."""
        with self.lock:
            self.closing = True
            calls = list(self.waiting) + [call for w in self.workers.values() for _, call in w.given]
            for call in calls:
                call.cancel()
            for worker in self.workers.values():
                worker.end()
            self.empty.wait_for(lambda: not self.workers, _LEAVE_S)

    # ------------------------------------------------------------------ for workers

    def staff(self, most: int) -> None:
        """Wakes who is idle, and starts workers for what nobody is there for. Holds the lock."""
        wanted = len(self.waiting)
        while wanted and self.idle:
            self.idle.popitem()[1].wake()
            wanted -= 1
        coming = sum(1 for w in self.workers.values() if not w.ready and not w.ended)
        for _ in range(min(wanted - coming, most - len(self.workers))):
            self.started += 1
            worker = Worker(self, self.started, quiet=bool(self.workers))
            self.workers[worker.number] = worker
            worker.thread.start()

    def take(self, worker: Worker) -> Optional[Call]:
        """The next call for a worker. One that has calls gets another only where there are enough for all."""
        with self.lock:
            self.idle.pop(worker.number, None)
            if worker.ended or (worker.given and len(self.waiting) <= len(self.workers)):
                return None
            if not self.waiting:
                if not worker.given:
                    self.idle[worker.number] = worker
                return None
            call = self.waiting.popleft()
            call._worker = worker
            return call

    def leave(self, worker: Worker) -> bool:
        """Whether an idle worker may go."""
        with self.lock:
            if self.waiting:
                return False
            self.idle.pop(worker.number, None)
            for other in self.workers.values():
                if not other.ready:
                    other.end()  # it waits for a place that nobody needs
            return True

    def failed(self, call: Call, error: BaseException) -> None:
        """A call raised something."""
        if self.retry_on and isinstance(error, self.retry_on) and call._deaths < self.retries:
            call._deaths += 1
            self.again([call])
        else:
            call.settle(error=error)

    def again(self, calls: Sequence[Call]) -> None:
        most = self.most()
        with self.lock:
            for call in reversed(calls):
                if not call.done():
                    call._worker = None
                    self.waiting.appendleft(call)
            self.staff(most)

    def gone(self, worker: Worker, status: int) -> None:
        """A worker has ended: what it had goes back or fails, and another comes where one is needed."""
        given = [call for _, call in worker.given]
        worker.given.clear()
        with self.lock:
            self.idle.pop(worker.number, None)
        error = None
        if not worker.ended and (given or not worker.ready or worker.error):
            error = self.why(worker, status, given[0]._what if given else self.what)
        with self.lock:
            self.workers.pop(worker.number, None)
            if worker.error is not None or not worker.ready:
                self.never_ready(worker, error, given)
            elif given:
                self.died(worker, error, given)
            elif self.waiting:
                self.staff(self.max_workers or 1)
            self.empty.notify_all()

    def never_ready(self, worker: Worker, error: Optional[BaseException], given: List[Call]) -> None:
        if error is not None and worker.error is None and any(w.ready or not w.ended for w in self.workers.values()):
            self.max_workers = max(1, len(self.workers))  # there is room for so many and no more
            error = None
        if error is not None:
            doomed = given + list(self.waiting)
            self.waiting.clear()
            for call in doomed:
                call.settle(error=error)
        else:
            self.again(given)

    def died(self, worker: Worker, error: Optional[BaseException], given: List[Call]) -> None:
        first = given[0]
        if error is None:  # we ended it for one of them, which is done; the others did nothing
            self.again(given)
            return
        if worker.lost:
            first._losses += 1
            spare = first._losses <= max(LOSSES_MOST, self.retries)
        else:
            first._deaths += 1
            spare = first._deaths <= self.retries and not isinstance(error, TaskCancelled)
        if not spare:
            first.settle(error=error)
            given = given[1:]
        self.again(given)

    def why(self, worker: Worker, status: int, what: str) -> BaseException:
        """Why a worker that was not told to has ended."""
        if worker.error is not None:
            return worker.error
        channel = worker.channel
        said = _programs.sentence(channel.words) if channel else ""
        task_id = channel.task_id if channel else None
        if status == REFUSED and not worker.ready:
            return Refused(said or "the cloud did not take it")
        info = _programs.ended_info(task_id)
        reason = info.get("reason") or said or None
        if info.get("state") == "cancelled":
            return TaskCancelled(status, reason, task_id, what)
        if (status == REFUSED and worker.ready and reason) or info.get("preempted"):
            worker.lost = True
        return TaskFailed(status, reason, task_id, what)


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def make_room(pool: Pool) -> None:
    """A worker has to wait for a place: those of other functions that only stand by give theirs."""
    for other in list(_pools):
        if other is not pool and other.options.pool == pool.options.pool:
            with other.lock:
                for worker in list(other.idle.values()):
                    worker.idle_since = float("-inf")
                    worker.wake()


def _at_exit() -> None:
    """A program that ends well waits for what it started, as concurrent.futures does; one that fails, or is interrupted, ends it."""
    bad = getattr(sys, "last_type", None) is not None
    for pool in list(_pools):
        if bad:
            pool.kill()
        else:
            pool.close(wait=True)


def _after_fork() -> None:
    """In a child of this process: workers and calls are the parent's. A function that is called here gets workers of its own."""
    for pool in list(_pools):
        pool.lock = threading.RLock()  # somebody may have had it
        pool.empty = threading.Condition(pool.lock)
        pool.closing = True
        for worker in pool.workers.values():
            if worker.channel:
                worker.channel.forget()
        pool.workers, pool.idle, pool.waiting = {}, {}, collections.deque()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
