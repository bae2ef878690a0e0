"""Links through the parts that Python itself is made of: functions, frames, tracebacks, threads' storage."""

from __future__ import annotations

import gc
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any

from .ordinary import instance
from .peek import attributes, inert, items
from .role import ATTRIBUTES, CELL, LOCALS, THREADS, TRACEBACK, Role
from .roots import Roots
from .variables import KEEPS_A_COPY
from .words import IntoClosure, IntoFrame, IntoThread

if TYPE_CHECKING:
    from .role import Found

SUSPENDED: dict[type, tuple[str, str]] = {
    GeneratorType: ("gi_frame", "generator"),
    CoroutineType: ("cr_frame", "coroutine"),
    AsyncGeneratorType: ("ag_frame", "async generator"),
}


def function(parent: FunctionType, _: object, wanted: set[int], roots: Roots) -> Found:
    yield parent.__closure__, "", Role("closure", parent)
    yield parent.__defaults__, ".__defaults__", None
    yield parent.__kwdefaults__, ".__kwdefaults__", None
    yield parent.__dict__, "", ATTRIBUTES


def closure(parent: Any, function: FunctionType, wanted: set[int], roots: Roots) -> Found:
    name = inert(function.__qualname__)
    for variable, kept in zip(function.__code__.co_freevars, parent):
        yield kept, IntoClosure(name, inert(variable)), CELL


def cell(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for child in gc.get_referents(parent):
        yield child, "", None


def method(parent: MethodType, _: object, wanted: set[int], roots: Roots) -> Found:
    yield parent.__self__, ".__self__", None
    yield parent.__func__, "", None


def traceback(parent: TracebackType, _: object, wanted: set[int], roots: Roots) -> Found:
    yield parent.tb_frame, "", Role("frame", parent.tb_lineno)
    yield parent.tb_next, "", TRACEBACK


def frame(parent: FrameType, line: int | None, wanted: set[int], roots: Roots) -> Found:
    before = f"{roots.place(parent.f_code, parent.f_lineno if line is None else line)} local "
    words = IntoFrame("exception", before, " in frame of kept exception")
    yield from _named(roots.variables.of(parent), words, wanted)
    if KEEPS_A_COPY:
        yield parent.f_locals, words, LOCALS
    yield parent.f_back, "", Role("frame")


def suspended(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    attribute, noun = SUSPENDED[type(parent)]
    held: FrameType | None = getattr(parent, attribute)
    if held is None:
        return
    yield from suspended_frame(held, noun, wanted, roots)
    # Up to Python 3.10 its frame is an object of its own, between it and its variables.
    yield held, "", Role("suspended", noun)


def suspended_frame(held: FrameType, noun: str, wanted: set[int], roots: Roots) -> Found:
    before = f"{roots.place(held.f_code, held.f_lineno)} local "
    after = f" in suspended {noun} {inert(held.f_code.co_name)}()"
    words = IntoFrame("generator", before, after)
    yield from _named(roots.variables.of(held), words, wanted)
    if KEEPS_A_COPY:
        yield held.f_locals, words, LOCALS


def _named(local: dict[str, object], words: IntoFrame, wanted: set[int]) -> Found:
    for name, value in local.items():
        if id(value) in wanted:
            yield value, IntoFrame(words.kind, words.before, words.behind, repr(name)), None


def variables(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    """The dict that a frame has made for those who looked at its variables."""
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, repr(name), None


def thread_local(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    """Values lie in one dict per thread, behind a dict of their own that is keyed by weak references."""
    for per_thread in gc.get_referents(parent):
        if type(per_thread) is dict and per_thread is not attributes(parent):
            yield per_thread, "", THREADS
    yield from instance(parent, None, wanted, roots)


def per_thread(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for _key, names in items(parent):
        yield names, IntoThread(), ATTRIBUTES
