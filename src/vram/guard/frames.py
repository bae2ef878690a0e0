"""Let go of what an exception's frames keep alive, so that the memory is there for the next try."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType


def let_go(error: BaseException) -> int:
    """Empty the finished frames that *error*, its causes and its group's members passed through.

    Returns how many. Frames that still run keep their variables; the traceback still prints,
    file and line of every step are in it. What is lost is a debugger's look at the variables.
    """
    cleared = 0
    for each in family(error):
        for trace in _steps(each.__traceback__):
            # A frame that still runs, or a generator that is only suspended, refuses.
            with suppress(RuntimeError):
                trace.tb_frame.clear()
                cleared += 1
    return cleared


def family(error: BaseException) -> Iterator[BaseException]:
    """*error* and every exception that hangs on it, each once."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def let_go_of_arrays(error: BaseException) -> int:
    return let_go(error)
