"""concurrent.futures on the cloud."""
from __future__ import annotations

import concurrent.futures
import time
from typing import Any, Callable, Iterable, Iterator, Optional

from ._options import Options
from ._pool import Call, Pool, Show


class Executor(concurrent.futures.Executor):
    """As ProcessPoolExecutor, with the processes on the cloud: max_workers tasks of a pool that take calls one after the other.

        with virga.Executor(pool="cpu", max_workers=4) as ex:
            futures = [ex.submit(pow, 2, n) for n in range(10)]

    The other options are those of run(). Functions travel as those of @virga.function do."""

    def __init__(self, pool: Optional[str] = None, max_workers: Optional[int] = None, *, idle: float = 30.0, retries: int = 0,
                 stream: Optional[Show] = None, **options: Any) -> None:
        options.setdefault("name", "executor")
        self._pool = Pool(Options(pool=pool, **options), max_workers, idle, retries, show=stream, what="the executor")

    def __repr__(self) -> str:
        return f"<virga.Executor on {self._pool.options.pool or 'the default pool'}: {len(self._pool.workers)} workers>"

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        fn = getattr(fn, "__wrapped__", fn) if type(fn).__module__ == "virga.function" else fn
        what = getattr(fn, "__qualname__", None) or repr(fn)
        return self._pool.submit(self._pool.define(fn, f"the function {what}"), args, kwargs, what)

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: Optional[float] = None, chunksize: int = 1,
            **_later: Any) -> Iterator[Any]:
        """As the one of concurrent.futures: takes all items at once, gives results in order. `chunksize` is not needed: short calls
        travel together by themselves."""
        end = None if timeout is None else timeout + time.monotonic()
        what = getattr(fn, "__qualname__", None) or repr(fn)
        number = self._pool.define(getattr(fn, "__wrapped__", fn) if type(fn).__module__ == "virga.function" else fn, f"the function {what}")
        calls = [self._pool.submit(number, args, {}, what) for args in zip(*iterables)]

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
