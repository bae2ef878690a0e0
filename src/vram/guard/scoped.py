"""Functions, threads and executors that run in a scope of their own.

Device memory belongs to the process: the end of a thread frees none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent import futures
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, TypeVar, overload

from vram.errors import UsageError
from vram.guard.scope import OnLeak, Scope, scope
from vram.guard.scope_tree import ScopeNode, current, inside

if TYPE_CHECKING:
    from vram.model.leak import Leak

F = TypeVar("F", bound="Callable[..., Any]")

CONSUMER_COUNTS = "memory kept by its consumer between yields is included: the two cannot be separated"


@overload
def scoped(function: F, /) -> F: ...
@overload
def scoped(name: str | None = None, /, **options: Any) -> Callable[[F], F]: ...
def scoped(name: Any = None, /, **options: Any) -> Any:
    """Run a function, a coroutine or a generator in a scope of its own, named after it.

    What it returns or yields is kept on purpose. A generator's scope lasts from its first step to its
    end: what its consumer keeps in between counts too.
    """
    if callable(name):
        return _wrap(name, name_of(name), {})
    scope(name or "scope", **options)  # wrong options are refused here, not at the first call
    return lambda function: _wrap(function, name or name_of(function), options)


def name_of(function: Callable[..., Any]) -> str:
    """Its qualified name; an object without one goes by its class."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _wrap(function: Any, name: str, options: dict[str, Any]) -> Any:
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
    """A ``threading.Thread`` whose GPU memory is checked at its end; ``leak`` says what it kept.

    Threads that run at the same time are checked together, when the last of them ends.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._scope = scope(self.name, leak=leak, limit=limit, thread=True)

    def __init_subclass__(cls) -> None:
        # Wrap whatever `run` is: its frame, with all its variables, is gone when the check runs.
        if "run" in vars(cls):
            cls.run = _in_threads_scope(cls.run)  # type: ignore[method-assign, assignment]

    def run(self) -> None:
        _run_once_in_scope(self, super().run)

    @property
    def leak(self) -> Leak | None:
        """What the thread kept, once it has ended."""
        return self._scope.leak


class ThreadPoolExecutor(futures.ThreadPoolExecutor):
    """An executor that checks GPU memory after every piece of work.

    A future that failed holds its exception, and that would hold every variable of the work: they are
    cleared here. Results belong to the caller and do not count as kept; in a scope around the caller
    they do.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        scope(leak=leak, limit=limit)  # wrong arguments are refused here, not in a thread
        super().__init__(*args, **options)
        self._leak, self._limit = leak, limit

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        opened = scope(name_of(function), leak=self._leak, limit=self._limit, thread=True)
        # In a list, which is emptied: an error that is held holds frames of the pool with what they got.
        return super().submit(_on_behalf_of, current(), opened, [function, args, kwargs])


def _in_threads_scope(run: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(run)
    def wrapped(self: Thread) -> None:
        _run_once_in_scope(self, partial(run, self))

    return wrapped


def _run_once_in_scope(thread: Thread, run: Callable[[], None]) -> None:
    # A subclass's run may call the base class's: only the outermost opens the scope.
    if thread._scope._node is not None:
        run()
        return
    _in_scope(thread._scope, run)


def _on_behalf_of(parent: ScopeNode | None, opened: Scope, work: list[Any]) -> Any:
    function, args, kwargs = work
    work.clear()
    with inside(parent):
        try:
            return _in_scope(opened, function, *args, **kwargs)
        finally:
            del function, args, kwargs


def _in_scope(opened: Scope, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with opened:
        try:
            return opened.keep(function(*args, **kwargs))
        finally:
            # An error that is held holds this frame, and with it all arguments of the work.
            del function, args, kwargs
