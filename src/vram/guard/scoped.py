"""Functions, threads and executors that run in a scope of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent import futures
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar, overload

from vram.errors import UsageError
from vram.guard.scope import OnLeak, Scope, scope
from vram.guard.scope_tree import Place, current, inside

if TYPE_CHECKING:
    from vram.model.leak import Leak

F = TypeVar("F", bound="Callable[..., Any]")

CONSUMER_COUNTS = "what its consumer kept between its yields counts too: no figure tells the two apart"


@overload
def scoped(function: F, /) -> F: ...
@overload
def scoped(name: str | None = None, /, **options: Any) -> Callable[[F], F]: ...
def scoped(name: Any = None, /, **options: Any) -> Any:
    """Run a function, a coroutine or a generator in a scope of its own, named after it.

    What it returns or yields is meant to stay. A generator's scope lasts from its first step to its
    end: what its consumer keeps in between counts too.
    """
    if callable(name):
        return _wrapped(name, name_of(name), {})
    scope(name or "scope", **options)  # what is wrong with them is said here, not at the first call
    return lambda function: _wrapped(function, name or name_of(function), options)


def name_of(function: Callable[..., Any]) -> str:
    """What a person calls it; an object without a name goes by its class."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _wrapped(function: Any, name: str, options: dict[str, Any]) -> Any:
    if _is(iscoroutinefunction, function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            async with scope(name, **options) as opened:
                return opened.keep(await function(*args, **kwargs))

        return awaited
    if _is(isgeneratorfunction, function):

        @wraps(function)
        def generated(*args: Any, **kwargs: Any) -> Any:
            with scope(name, **options) as opened:
                opened.remark = CONSUMER_COUNTS
                return opened.keep((yield from _Keeping(function(*args, **kwargs), opened.keep)))

        return generated
    if _is(isasyncgenfunction, function):
        raise UsageError(f"{name} is an async generator", hint="use `async with vram.scope(...)` inside it")

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with scope(name, **options) as opened:
            return opened.keep(function(*args, **kwargs))

    return called


def _is(kind: Callable[[object], bool], function: object) -> bool:
    """Whether it, or what an object does when it is called, is a function of that *kind*."""
    return kind(function) or kind(type(function).__call__)


class _Keeping:
    """A generator for ``yield from``, every value of which is meant to stay."""

    def __init__(self, steps: Generator[Any, Any, Any], keep: Callable[[Any], Any]) -> None:
        self._steps, self._keep = steps, keep

    def __iter__(self) -> _Keeping:
        return self

    def __next__(self) -> Any:
        return self._keep(next(self._steps))

    def send(self, value: Any) -> Any:
        return self._keep(self._steps.send(value))

    def throw(self, *error: Any) -> Any:
        return self._keep(self._steps.throw(*error))

    def close(self) -> None:
        self._steps.close()


# ---- threads and executors ----


class Thread(threading.Thread):
    """A ``threading.Thread`` that settles its GPU memory at its end; ``leak`` says what it kept.

    Threads that run at the same time are settled together, by the last of them.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._settled = scope(self.name, leak=leak, limit=limit, thread=True)

    def __init_subclass__(cls) -> None:
        # Around whatever `run` is: its frame, and all it had in variables, is gone when we settle.
        if "run" in vars(cls):
            cls.run = _settling(cls.run)  # type: ignore[method-assign, assignment]

    def run(self) -> None:
        _settle_after(self, super().run)

    @property
    def leak(self) -> Leak | None:
        """What the thread kept, when it has ended."""
        return self._settled.leak


class ThreadPoolExecutor(futures.ThreadPoolExecutor):
    """An executor that settles GPU memory after every piece of work.

    A future that failed keeps its exception, and that would keep every variable of the work:
    they are let go of here. Results are the caller's, and do not count as kept; in a scope around
    the caller they do.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        scope(leak=leak, limit=limit)  # what is wrong with them is said here, not in a thread
        super().__init__(*args, **options)
        self._leak, self._limit = leak, limit

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        opened = scope(name_of(function), leak=self._leak, limit=self._limit, thread=True)
        return super().submit(_on_behalf_of, current(), opened, function, *args, **kwargs)


def _settling(run: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(run)
    def settled(self: Thread) -> None:
        _settle_after(self, partial(run, self))

    return settled


def _settle_after(thread: Thread, run: Callable[[], None]) -> None:
    # A subclass's run may call ours: the outermost settles.
    if thread._settled.place is not None:
        run()
        return
    _in_scope(thread._settled, run)


def _on_behalf_of(place: Place | None, /, *work: Any, **kwargs: Any) -> Any:
    with inside(place):
        try:
            return _in_scope(*work, **kwargs)
        finally:
            del work, kwargs


def _in_scope(opened: Scope, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with opened:
        try:
            return opened.keep(function(*args, **kwargs))
        finally:
            # An error that is kept keeps this frame, and that all the work was given.
            del function, args, kwargs
