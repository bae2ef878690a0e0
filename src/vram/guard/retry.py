"""Try again with less when the GPU is out of memory: the loop that people write by hand.

    @vram.retry_on_oom(shrink="batch_size")
    def train(data, batch_size): ...

Between two tries the failed one's variables are let go of, its exception is gone, garbage is
collected and every framework's cache is emptied: a retry inside an ``except`` block would keep
all of it alive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from vram.errors import UsageError
from vram.guard.footprint import driver_is_loaded
from vram.guard.frames import let_go
from vram.guard.oom import noticed
from vram.guard.out_of_memory import is_out_of_memory

F = TypeVar("F", bound=Callable[..., Any])
Smaller = Callable[[Any], Any]
Shrink = str | Mapping[str, Smaller]

TRIES = 16


def retry_on_oom(
    function: F | None = None,
    /,
    *,
    shrink: Shrink | None = None,
    least: int = 1,
    tries: int = TRIES,
    remember: bool = False,
) -> Any:
    """Call *function* again while it runs out of GPU memory; use it as a decorator or directly.

    *shrink* names the argument that is halved for each new try, down to *least*; or maps names
    to functions from the last value to the next, which return None when there is no smaller one.
    Without it, one more try is made with everything let go. With *remember*, later calls that
    ask for more begin with the size that worked. What is not an out-of-memory is raised at once;
    when nothing smaller is left, the last out-of-memory is.
    """
    if tries < 1 or least < 1:
        raise UsageError(f"tries={tries!r} and least={least!r} must be at least 1", hint="write tries=8")
    if function is None:
        return lambda decorated: _retrying(decorated, _steps(shrink, least), tries, remember)
    return _retrying(function, _steps(shrink, least), tries, remember)


def _steps(shrink: Shrink | None, least: int) -> Mapping[str, Smaller]:
    if shrink is None:
        return {}
    if isinstance(shrink, str):
        return {shrink: lambda value: _halved(value, least)}
    if isinstance(shrink, Mapping) and all(map(callable, shrink.values())):
        return shrink
    raise UsageError(
        f"shrink={shrink!r} names no argument", hint='write shrink="batch_size", or {"name": function}'
    )


def _halved(value: Any, least: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise UsageError(f"a {kind} cannot be halved", hint="name a number, or map the name to a function")
    smaller = value // 2 if isinstance(value, int) else value / 2
    # Not a jump from 3 to 1 with least=2: the least itself is worth a try.
    smaller = max(smaller, least)
    return smaller if smaller < value else None


def _retrying(function: Callable[..., Any], steps: Mapping[str, Smaller], tries: int, remember: bool) -> Any:
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{function.__qualname__} is a coroutine", hint="retry the function that it calls")
    signature = inspect.signature(function)
    _require(signature, steps)
    worked: dict[str, Any] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in worked.items():
            # Somebody who asks for less gets less; what cannot be compared is taken as it worked.
            with suppress(TypeError):
                value = min(value, _asked(bound, name))
            _ask(bound, name, value)
        left = tries if steps else min(tries, 2)
        while True:
            left -= 1
            try:
                result = function(*bound.args, **bound.kwargs)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                noticed(error)
                let_go(error)
                if not left or not _shrunk(bound, steps):
                    error.add_note(_last_word(bound, steps))
                    raise
            else:
                if remember:
                    worked.update({name: _asked(bound, name) for name in steps})
                return result
            # Only here, where the exception is gone, does its traceback keep nothing any more.
            _make_room()

    return call


def _require(signature: inspect.Signature, steps: Mapping[str, Smaller]) -> None:
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for name in steps:
        if name not in signature.parameters and not takes_any:
            known = ", ".join(signature.parameters) or "no arguments"
            raise UsageError(f"the function has no argument {name!r} to shrink", hint=f"it takes {known}")


def _shrunk(bound: inspect.BoundArguments, steps: Mapping[str, Smaller]) -> bool:
    """Ask for less in *bound*; False where nothing is left to shrink, though something could be."""
    smaller = {name: step(_asked(bound, name)) for name, step in steps.items()}
    known = {name: value for name, value in smaller.items() if value is not None}
    for name, value in known.items():
        _ask(bound, name, value)
    return bool(known) or not steps


def _asked(bound: inspect.BoundArguments, name: str) -> Any:
    return _table(bound, name).get(name)


def _ask(bound: inspect.BoundArguments, name: str, value: Any) -> None:
    _table(bound, name)[name] = value


def _table(bound: inspect.BoundArguments, name: str) -> dict[str, Any]:
    """Where the argument lies: on its own, or among those that ``**kwargs`` takes."""
    if name in bound.signature.parameters:
        return bound.arguments
    rest = next(each.name for each in bound.signature.parameters.values() if each.kind is each.VAR_KEYWORD)
    table: dict[str, Any] = bound.arguments[rest]
    return table


def _last_word(bound: inspect.BoundArguments, steps: Mapping[str, Smaller]) -> str:
    asked = ", ".join(f"{name}={_asked(bound, name)!r}" for name in steps)
    return f"vram: {asked or 'a second try'} ran out of memory too, and no smaller one is left to try"


def _make_room() -> None:
    import gc

    gc.collect()
    if driver_is_loaded():
        from vram.guard.settle import let_caches_go

        let_caches_go()
