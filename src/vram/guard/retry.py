"""Try again with less when the GPU is out of memory: the loop that people write by hand.

    @vram.retry_on_oom(shrink="batch_size")
    def train(data, batch_size): ...

Between two tries the variables of the failed one are cleared, its exception is dropped, garbage is
collected and every framework's cache is emptied: a retry inside an ``except`` block would hold all of
it in memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from math import ceil
from numbers import Integral, Real
from typing import Any, TypeVar

from vram.errors import UsageError
from vram.guard.cuda_errors import add_broken_notes, broken_contexts, clear_frames, is_out_of_memory
from vram.guard.memory import driver_is_loaded
from vram.guard.oom import record_oom
from vram.python_310 import add_note

F = TypeVar("F", bound=Callable[..., Any])
Smaller = Callable[[Any], Any]
Shrink = str | Mapping[str, Smaller]

TRIES = 16
RUNS_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def retry_on_oom(
    function: F | None = None,
    /,
    *,
    shrink: Shrink | None = None,
    least: float | None = None,
    tries: int = TRIES,
    remember: bool = False,
) -> Any:
    """Call *function* again while it runs out of GPU memory; use it as a decorator or directly.

    *shrink* names the argument that is halved for each new try, down to *least* (left out, whole
    numbers go down to 1); or maps names to functions from the last value to the next, which return
    None when there is no smaller one. Without it, one more try is made after everything is released.
    A context that an earlier error broke is not tried again.
    With *remember*, later calls that ask for more begin with the size that worked. What is not an
    out-of-memory is raised at once; when nothing smaller or no try is left, the last
    out-of-memory is, with a note that says which.
    """
    if not isinstance(tries, int) or tries < 1:
        raise UsageError(f"tries={tries!r} is not a number of tries", hint="write tries=8")
    if least is not None and not (isinstance(least, Real) and least > 0):
        raise UsageError(f"least={least!r} is not a size to stop at", hint="write least=1")
    if function is None:
        return lambda decorated: _wrap(decorated, _steps(shrink, least), tries, remember)
    return _wrap(function, _steps(shrink, least), tries, remember)


def _steps(shrink: Shrink | None, least: float | None) -> Mapping[str, Smaller]:
    if shrink is None:
        return {}
    if isinstance(shrink, str):
        return {shrink: lambda value: _halve(shrink, value, least)}
    if isinstance(shrink, Mapping) and all(map(callable, shrink.values())):
        return shrink
    raise UsageError(
        f"shrink={shrink!r} names no argument", hint='write shrink="batch_size", or {"name": function}'
    )


def _halve(name: str, value: Any, least: float | None) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(
            f"{name} is a {type(value).__name__}, which cannot be halved",
            hint="name a number, or map the name to a function",
        )
    is_whole = isinstance(value, Integral)
    half: Any = value // 2 if is_whole else value / 2
    # Not a jump from 3 to 1 with least=2: the least itself is worth a try.
    smaller = max(half, ceil(least or 1) if is_whole else least or 0)
    return smaller if smaller < value else None


def _wrap(function: Callable[..., Any], steps: Mapping[str, Smaller], tries: int, remember: bool) -> Any:
    if any(runs_later(function) for runs_later in RUNS_LATER):
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(f"{name} is a generator or a coroutine", hint="retry the function that it calls")
    signature = inspect.signature(function)
    _require(signature, steps)
    worked: dict[str, Any] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in worked.items():
            # A caller that asks for less gets less; what cannot be compared is set to what worked.
            with suppress(TypeError):
                value = min(value, _argument(bound, name))
            _table(bound, name)[name] = value
        made = 0
        while True:
            made += 1
            try:
                result = function(*bound.args, **bound.kwargs)
            except Exception as error:
                if _is_hopeless(error) or not is_out_of_memory(error):
                    raise
                record_oom(error)
                clear_frames(error)
                end = _reason_to_stop(bound, steps, made, tries)
                if end:
                    add_note(error, f"vram: {end}")
                    raise
            else:
                if remember:
                    worked.update({name: _argument(bound, name) for name in steps})
                return result
            # Only here, after the except block, is the exception dropped with all that it held.
            _make_room()

    return call


def _is_hopeless(error: Exception) -> bool:
    """Whether the context is broken, which some libraries report as out of memory; *error* gets a note."""
    broken = broken_contexts(error)
    add_broken_notes(error, broken)
    return bool(broken)


def _require(signature: inspect.Signature, steps: Mapping[str, Smaller]) -> None:
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for name in steps:
        if name not in signature.parameters and not takes_any:
            known = ", ".join(signature.parameters) or "no arguments"
            raise UsageError(f"the function has no argument {name!r} to shrink", hint=f"it takes {known}")


def _shrink(bound: inspect.BoundArguments, steps: Mapping[str, Smaller]) -> bool:
    """Make the arguments in *bound* smaller; False if none of *steps* can go lower."""
    smaller = {name: step(_argument(bound, name)) for name, step in steps.items()}
    known = {name: value for name, value in smaller.items() if value is not None}
    for name, value in known.items():
        _table(bound, name)[name] = value
    return bool(known) or not steps


def _argument(bound: inspect.BoundArguments, name: str) -> Any:
    return _table(bound, name).get(name)


def _table(bound: inspect.BoundArguments, name: str) -> dict[str, Any]:
    """The dict with the argument: the bound arguments, or those that ``**kwargs`` takes."""
    if name in bound.signature.parameters:
        return bound.arguments
    rest = next(each.name for each in bound.signature.parameters.values() if each.kind is each.VAR_KEYWORD)
    table: dict[str, Any] = bound.arguments[rest]
    return table


def _reason_to_stop(
    bound: inspect.BoundArguments, steps: Mapping[str, Smaller], made: int, tries: int
) -> str:
    """Shrink the arguments in *bound* for the next try; or return why, after *made* tries, none follows."""
    asked = ", ".join(f"{name}={_value_text(_argument(bound, name))}" for name in steps)
    try:
        shrunk = _shrink(bound, steps)
    except UsageError as trouble:  # the out-of-memory is what has to be raised
        return f"{trouble}: {trouble.hint}"
    if not shrunk:
        return f"{asked} ran out of memory too, and there is no smaller one to try"
    if made == tries == 1:
        return "tries=1 allows no second try"
    if made == tries and steps:
        return f"{asked} ran out of memory too, and tries={tries} allows no more"
    return "a second try ran out of memory too" if made == 2 and not steps else ""


def _value_text(value: Any) -> str:
    """Only numbers and text: formatting a GPU array would need GPU memory now."""
    return str(value) if isinstance(value, Real | str) else f"<{type(value).__name__}>"


def _make_room() -> None:
    import gc

    gc.collect()
    if driver_is_loaded():
        from vram.guard.leak_check import release_caches

        release_caches()
