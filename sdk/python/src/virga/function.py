"""Functions that run on the cloud: @virga.function."""
from __future__ import annotations

import collections
import functools
import queue
import types
from typing import (Any, AsyncIterator, Callable, Deque, Dict, Generic, Iterable, Iterator, Optional, Sequence, Tuple, Type, TypeVar, Union,
                    overload)

from . import _codec
from ._options import Options
from ._pool import Call, Definition, Pool
from ._printer import Show

R = TypeVar("R")
_WINDOW_EACH = 8  # calls at hand for each worker of a map
_WINDOW_LEAST = 64


class Function(Generic[R]):
    """A function with a place to run. Called as it is, it runs here; .remote() runs it on the cloud and waits, .spawn() gives a
    future, .map() and .starmap() run it for many arguments; .aio is all of that for `await`."""

    def __init__(self, func: Callable[..., R], options: Options, **policy: Any) -> None:
        functools.update_wrapper(self, func)
        self.__wrapped__ = func
        self.options = options
        self._policy = policy
        self._pool: Optional[Pool] = None
        self.aio: _Aio[R] = _Aio(self)

    def __repr__(self) -> str:
        return f"<virga.function {self._name} on {self.options.pool or 'the default pool'}>"

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.__wrapped__(*args, **kwargs)

    def local(self, *args: Any, **kwargs: Any) -> R:
        """Runs it here."""
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, instance: Any, _owner: Any = None) -> "Function[R]":
        """Of a method: the same for an object, which travels along. The workers are shared."""
        if instance is None:
            return self
        bound: Function[R] = Function(types.MethodType(self.__wrapped__, instance), self.options, **self._policy)
        bound._pool = self.pool()
        return bound

    @property
    def _name(self) -> str:
        return getattr(self.__wrapped__, "__qualname__", None) or repr(self.__wrapped__)

    # ------------------------------------------------------------------ travelling

    def __reduce_ex__(self, _protocol: Any) -> Any:
        if _codec.found_by_import(self.__wrapped__):
            return _codec._load_named, (self.__wrapped__.__module__, self.__wrapped__.__qualname__)
        # Its function may use it by its name: it has to be there before what it is made of.
        return _blank, (), (self.__wrapped__, self.options, self._policy)

    def __setstate__(self, state: Tuple[Callable[..., R], Options, Dict[str, Any]]) -> None:
        self.__init__(state[0], state[1], **state[2])  # type: ignore[misc]

    # ------------------------------------------------------------------ running

    def with_options(self, **changes: Any) -> "Function[R]":
        """The same function, to be run otherwise: with another pool, more GPUs, …"""
        policy = {name: changes.pop(name, value) for name, value in self._policy.items()}
        return Function(self.__wrapped__, self.options.replace(**changes), **policy)

    def pool(self) -> Pool:
        """Its workers."""
        if self._pool is None or self._pool.closing:
            options = self.options
            if options.name is None:
                options = options.replace(name=_task_name(self._name))
            p = self._policy
            self._pool = Pool(options, p["concurrency"], p["idle"], p["retries"], p["retry_on"], p["stream"], self._name, p["timeout"])
        return self._pool

    def _submit(self, pool: Pool, definition: Definition, args: Sequence[Any], kwargs: Dict[str, Any]) -> Call:
        return pool.submit(definition, args, kwargs, self._name)

    def spawn(self, *args: Any, **kwargs: Any) -> Call:
        """Starts it on the cloud; a future. Its cancel() ends it, also while it runs."""
        pool = self.pool()
        return self._submit(pool, pool.define(self.__wrapped__, f"the function {self._name}"), args, kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> R:
        """Runs it on the cloud and waits for what it returns; what it raises is raised here."""
        call = self.spawn(*args, **kwargs)
        try:
            value: R = call.result()
            return value
        finally:
            call.cancel()  # of a call that has ended, nothing

    def map(self, *iterables: Iterable[Any], order: bool = True, return_exceptions: bool = False,
            kwargs: Optional[Dict[str, Any]] = None) -> Iterator[Any]:
        """Runs it for every item, on several workers at once, and gives the results as they come: in order, or with order=False
        whatever is ready first. Items are taken from the iterable as workers need them. What an item raises is raised at its
        place and ends the map; with return_exceptions=True it is given at its place, and the others go on. Work begins with
        the first next()."""
        return self.starmap(zip(*iterables), order=order, return_exceptions=return_exceptions, kwargs=kwargs)

    def starmap(self, items: Iterable[Sequence[Any]], order: bool = True, return_exceptions: bool = False,
                kwargs: Optional[Dict[str, Any]] = None) -> Iterator[Any]:
        """map() for items that are tuples of arguments."""
        pool = self.pool()
        definition = pool.define(self.__wrapped__, f"the function {self._name}")
        source = iter(items)
        calls: Deque[Call] = collections.deque()
        done: "queue.SimpleQueue[Call]" = queue.SimpleQueue()

        def more() -> None:
            window = max(_WINDOW_LEAST, _WINDOW_EACH * pool.most())
            while len(calls) < window:
                try:
                    args = next(source)
                except StopIteration:
                    return
                call = self._submit(pool, definition, args, kwargs or {})
                calls.append(call)
                if not order:
                    call.add_done_callback(done.put)  # type: ignore[arg-type]

        try:
            more()
            while calls:
                call = calls[0] if order else done.get()
                error = call.exception()
                calls.remove(call)
                if error is None:
                    yield call.result()
                elif return_exceptions:
                    yield error
                else:
                    raise error
                more()
        finally:
            for call in list(calls):
                call.cancel()

    def close(self) -> None:
        """Lets its workers go now, and not when they have been idle for a while."""
        if self._pool is not None:
            self._pool.close()


class _Aio(Generic[R]):
    """A function for `await`."""

    def __init__(self, function: Function[R]) -> None:
        self._function = function

    async def __call__(self, *args: Any, **kwargs: Any) -> R:
        import asyncio
        value: R = await asyncio.wrap_future(self._function.spawn(*args, **kwargs))
        return value

    remote = __call__

    async def map(self, *iterables: Iterable[Any], order: bool = True, return_exceptions: bool = False) -> AsyncIterator[Any]:
        """`async for` over Function.map(); the loop goes on meanwhile."""
        from ._task import in_thread
        results = self._function.map(*iterables, order=order, return_exceptions=return_exceptions)
        end = object()
        try:
            while True:
                value = await in_thread(next, results, end)
                if value is end:
                    return
                yield value
        finally:
            await in_thread(_close, results)


def _close(results: Any) -> None:
    try:
        results.close()
    except ValueError:  # it is being asked for its next
        pass


def _blank() -> Function[Any]:
    return Function.__new__(Function)


def _task_name(qualname: str) -> str:
    """A function's name as a task may be called."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in qualname.replace("<locals>.", "")).strip("-")[:60] or "function"


@overload
def function(func: Callable[..., R]) -> Function[R]: ...
@overload
def function(func: None = None, *, concurrency: Optional[int] = None, retries: int = 0, retry_on: Sequence[Type[BaseException]] = (),
             idle: float = 2.0, timeout: Optional[float] = None, stream: Optional[Show] = None,
             **options: Any) -> Callable[[Callable[..., R]], Function[R]]: ...


def function(func: Optional[Callable[..., R]] = None, *, concurrency: Optional[int] = None, retries: int = 0,
             retry_on: Sequence[Type[BaseException]] = (), idle: float = 2.0, timeout: Optional[float] = None,
             stream: Optional[Show] = None, **options: Any) -> Union[Function[R], Callable[[Callable[..., R]], Function[R]]]:
    """Makes a function one that can run on the cloud.

        @virga.function(pool="a100-1", gpus=1)
        def train(lr): ...

        train.remote(0.1)

    concurrency   at most so many workers at once; as many as the pool has room for, unless said
    retries       how often a call runs again whose worker died (killed, out of memory), or that raised one of `retry_on`
    idle          how long a worker stays when there is nothing to do, in seconds
    timeout       a call that runs longer than so many seconds is ended and raises TimeoutError
    sync          from another machine: what a call wrote into the project is here when it returns (True); False: soon after
    stream        told ("stdout" | "stderr", line) of what is printed there, instead of printing it here
    The other options are those of run()."""
    said = Options(**{"sync": True, **options})
    policy = {"concurrency": concurrency, "retries": retries, "retry_on": tuple(retry_on), "idle": idle, "timeout": timeout, "stream": stream}

    def make(f: Callable[..., R]) -> Function[R]:
        return Function(f, said, **policy)

    return make if func is None else make(func)
