"""Read any object and any frame without running its code and without leaving a reference behind.

Users' classes override ``__getattr__``, ``__len__``, ``__iter__`` or ``__dict__``. Everything here uses
the slots of the built-in types and descriptors that are defined in C.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import FrameType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

# ---- objects ----

DEFINED_IN_C = (GetSetDescriptorType, MemberDescriptorType)
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_type_name = type.__dict__["__qualname__"].__get__


def lineage(kind: type) -> tuple[type, ...]:
    """A class and its bases, whatever its metaclass returns for ``__mro__``."""
    found: tuple[type, ...] = _mro(kind)
    return found


def type_name(obj: object) -> str:
    name = _type_name(type(obj))
    return name if type(name) is str else "object"


def is_a(obj: object, *kinds: type) -> bool:
    """``isinstance`` by the real type alone: ``__class__`` can be overridden."""
    real = lineage(type(obj))
    return any(kind in real for kind in kinds)


def attributes(obj: object) -> dict[str, object] | None:
    """The instance's own ``__dict__``; None if it has none, or one that is computed by Python code."""
    for kind in lineage(type(obj)):
        getter = _namespace(kind).get("__dict__")
        if getter is not None:
            found = getter.__get__(obj) if type(getter) in DEFINED_IN_C else None
            return found if type(found) is dict else None
    return None


def defines(kind: type, *names: str) -> bool:
    """Whether a class or one of its bases has any of *names*: reading it from an instance may run code."""
    return any(name in _namespace(each) for each in lineage(kind) for name in names)


def read_in_c(obj: object, name: str) -> object:
    """An attribute that C computes, such as a NumPy array's shape; None where Python code would."""
    for kind in lineage(type(obj)):
        getter = _namespace(kind).get(name)
        if getter is not None:
            return getter.__get__(obj) if type(getter) in DEFINED_IN_C else None
    return None


def members(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """The slots that C or ``__slots__`` defined for objects of *kind*, by name."""
    for each in lineage(kind):
        for name, member in _namespace(each).items():
            if type(member) is MemberDescriptorType:
                yield name, member


def slots(obj: object) -> Iterator[tuple[str, object]]:
    """The values in an object's slots, by name."""
    for name, member in members(type(obj)):
        try:
            yield name, member.__get__(obj)
        except AttributeError:
            continue  # never set


def items(obj: object) -> Iterator[tuple[object, object]]:
    """Keys or positions with their values, of the built-in containers and their subclasses."""
    if type(obj) is dict or is_a(obj, dict):
        yield from dict.items(obj)  # type: ignore[arg-type]
    elif type(obj) is list:
        yield from enumerate(obj)
    elif is_a(obj, MappingProxyType):
        yield from MappingProxyType.items(obj)  # type: ignore[arg-type]
    else:
        for kind in (list, tuple, deque):
            if is_a(obj, kind):
                yield from enumerate(kind.__iter__(obj))  # type: ignore[arg-type]


def key_text(key: object, depth: int = 1) -> str:
    """A key as it is written in code; for anything but plain data only its type."""
    if type(key) in (str, bytes):
        shown = repr(key)
        return shown if len(shown) <= 42 else f"{shown[:38]}…{shown[-1]}"
    if type(key) is int:
        return repr(key) if key.bit_length() < 200 else "<a large int>"
    if type(key) in (float, bool, complex, type(None)):
        return repr(key)
    if type(key) is tuple and depth and len(key) <= 4:
        return f"({', '.join(key_text(each, depth - 1) for each in key)})"
    return f"<{inert(type_name(key))}>"


def inert(text: str) -> str:
    """*text* with unprintable characters escaped: names come from programs."""
    return text if text.isprintable() else repr(text)[1:-1]


# ---- local variables of frames ----
#
# Up to Python 3.12, reading f_locals of a function's frame makes the frame keep a dict with a second
# reference to every variable, until it is read again: the search for leaks would make leaks. What was put
# there only for this search is removed again.

# Modules of vram, here and where they were injected into another program.
OURS = ("vram.", "_vram_", "vram_visit")
FRAMES_KEEP_A_COPY = sys.version_info < (3, 13)
OPTIMIZED = 0x1  # a function's code: its variables live in slots, not in a dict
OUR_REFERENCES = 3  # the frame, our variable, and getrefcount's argument


class Variables:
    """Reads local variables; call :meth:`release` when nothing that was read is needed any more."""

    def __init__(self) -> None:
        self._asked: dict[int, FrameType] = {}

    def of(self, frame: FrameType) -> dict[str, object]:
        """A function frame's variables by name; empty where they are a module's own globals."""
        if frame.f_code.co_flags & OPTIMIZED:
            self._asked[id(frame)] = frame
        elif frame.f_locals is frame.f_globals:
            return {}
        return dict(frame.f_locals)

    def release(self) -> None:
        while self._asked:
            _, frame = self._asked.popitem()
            if FRAMES_KEEP_A_COPY and not _is_traced(frame):
                _empty(frame)


def _empty(frame: FrameType) -> None:
    variables: Any = frame.f_locals
    # locals() returns this same dict to programs: one that the program holds is not emptied.
    if sys.getrefcount(variables) <= OUR_REFERENCES:
        code = frame.f_code
        for name in code.co_varnames + code.co_cellvars + code.co_freevars:
            variables.pop(name, None)


def _is_traced(frame: FrameType) -> bool:
    # A trace function's dict is written back into the variables when it returns, so under a debugger
    # an emptied dict would unset them.
    of_threads = getattr(threading, "gettrace", lambda: None)  # missing in Python 3.9
    return frame.f_trace is not None or sys.gettrace() is not None or of_threads() is not None


def running_frames() -> list[tuple[int, FrameType]]:
    """Every frame of every thread with the thread's identity, newest first; vram's own left out."""
    found = []
    newest = sys._current_frames()
    for thread in list(newest):
        frame: FrameType | None = newest.pop(thread)
        while frame is not None:
            if not is_own_frame(frame):
                found.append((thread, frame))
            frame = frame.f_back
    # This frame was one of them: in its own variable it would hold all frames below it, too.
    return found


def is_own_frame(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(OURS)
