"""Let go of what an exception's frames keep alive, so that the memory is there for the next try."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType


def let_go(error: BaseException, only: Callable[[FrameType], bool] = lambda _: True) -> int:
    """Empty the finished frames that *error*, its causes and its group's members passed through.

    Returns how many. Frames that still run keep their variables; the traceback still prints,
    file and line of every step are in it. What is lost is a debugger's look at the variables.
    """
    cleared = 0
    for each in family(error):
        for trace in _steps(each.__traceback__):
            # A frame that still runs, or a generator that is only suspended, refuses.
            with suppress(RuntimeError):
                if only(trace.tb_frame):
                    trace.tb_frame.clear()
                    # Who has looked at f_locals before made a copy, which keeps everything until the
                    # next look brings it up to date (Python 3.12 and older).
                    _ = trace.tb_frame.f_locals
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
    """The same for frames that have GPU arrays among their variables alone; others stay as they are."""
    from vram.guard.suspects import has_array

    def holds_array(frame: FrameType) -> bool:
        # The collector's view of its variables; a look at f_locals would copy them.
        held = gc.get_referents(frame)
        return has_array(each for each in held if each is not frame.f_globals)

    return let_go(error, only=holds_array)
