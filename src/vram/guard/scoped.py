"""``@vram.scoped``: a function, a coroutine or a generator that always runs in a scope of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar, overload

from vram.errors import UsageError
from vram.guard.scope import scope

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
