"""Local variables of frames, read without leaving a reference behind.

Up to Python 3.12, asking a function's frame for ``f_locals`` makes the frame keep a dict with
a second reference to every variable until it is asked again: looking for leaks would make
them. What was put there only for us is taken out again.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any

# Modules of ours, in vram itself and where they were carried into another program.
OURS = ("vram.", "_vram_", "vram_visit")
KEEPS_A_COPY = sys.version_info < (3, 13)
OPTIMIZED = 0x1  # a function's code: its variables live in slots, not in a dict
NOBODY_ELSE = 3  # the frame, our variable, and getrefcount's argument


class Variables:
    """Reads local variables; :meth:`let_go` when nothing that was read is held any more."""

    def __init__(self) -> None:
        self._asked: dict[int, FrameType] = {}

    def of(self, frame: FrameType) -> dict[str, object]:
        """A function frame's variables by name; empty where they are a module's own globals."""
        if frame.f_code.co_flags & OPTIMIZED:
            self._asked[id(frame)] = frame
        elif frame.f_locals is frame.f_globals:
            return {}
        return dict(frame.f_locals)

    def let_go(self) -> None:
        while self._asked:
            _, frame = self._asked.popitem()
            if KEEPS_A_COPY and not _is_traced(frame):
                _empty(frame)


def _empty(frame: FrameType) -> None:
    variables: Any = frame.f_locals
    # locals() hands this same dict to programs: one that somebody else holds is theirs.
    if sys.getrefcount(variables) <= NOBODY_ELSE:
        for name in _slots(frame.f_code):
            variables.pop(name, None)


def _is_traced(frame: FrameType) -> bool:
    # A tracer writes that dict back into the variables when its callback returns, so under a
    # debugger an emptied dict would unset them.
    of_threads = getattr(threading, "gettrace", lambda: None)  # Python 3.9 does not tell
    return frame.f_trace is not None or sys.gettrace() is not None or of_threads() is not None


def _slots(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames + code.co_cellvars + code.co_freevars


def running_frames() -> list[tuple[int, FrameType]]:
    """Every frame of every thread with the thread's identity, newest first; vram's own left out."""
    found = []
    newest = sys._current_frames()
    for thread in list(newest):
        frame: FrameType | None = newest.pop(thread)
        while frame is not None:
            if not is_our_own(frame):
                found.append((thread, frame))
            frame = frame.f_back
    # One of them was this very frame: kept in its own variable, it would keep all below it too.
    return found


def is_our_own(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(OURS)
