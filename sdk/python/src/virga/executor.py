"""concurrent.futures on the cloud."""
from __future__ import annotations

import concurrent.futures
import time
from typing import Any, Callable, Iterable, Iterator, Optional, Tuple

from ._options import Options
from ._pool import Call, Definition, Pool
from ._printer import Show
from .function import Function


class Executor(concurrent.futures.Executor):
    """As ProcessPoolExecutor, with the processes on the cloud: max_workers tasks of a pool that take calls one after the other.

        with virga.Executor(pool="cpu", max_workers=4) as ex:
            futures = [ex.submit(pow, 2, n) for n in range(10)]

    The other options are those of run(). Functions travel as those of @virga.function do."""

    def __init__(self, pool: Optional[str] = None, max_workers: Optional[int] = None, *, idle: float = 30.0, retries: int = 0,
                 stream: Optional[Show] = None, **options: Any) -> None:
        options.setdefault("name", "executor")
        options.setdefault("sync", True)
        self._pool = Pool(Options(pool=pool, **options), max_workers, idle, retries, show=stream, what="the executor")

    def __repr__(self) -> str:
        return f"<virga.Executor on {self._pool.options.pool or 'the default pool'}: {len(self._pool.workers)} workers>"

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        definition, what = self._define(fn)
        return self._pool.submit(definition, args, kwargs, what)

    def _define(self, fn: Callable[..., Any]) -> Tuple[Definition, str]:
        plain = fn.__wrapped__ if isinstance(fn, Function) else fn
        what = getattr(plain, "__qualname__", None) or repr(plain)
        return self._pool.define(plain, f"the function {what}"), what

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1,
            **_later: Any) -> Iterator[Any]:
        """As the one of concurrent.futures: takes all items at once, gives results in order. `chunksize` is not needed: short calls
        travel together by themselves."""
        end = None if timeout is None else timeout + time.monotonic()
        definition, what = self._define(fn)
        calls = [self._pool.submit(definition, args, {}, what) for args in zip(*iterables)]

        def results() -> Iterator[Any]:
            try:
                calls.reverse()
                while calls:
                    call = calls.pop()
                    try:
                        yield call.result(None if end is None else max(0.0, end - time.monotonic()))
                    finally:
                        call.cancel()
            finally:
                for call in calls:
                    call.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.close(wait=wait, cancel_waiting=cancel_futures)
