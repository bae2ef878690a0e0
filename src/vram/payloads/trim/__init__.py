"""Release what this process only caches, and report how much there was, framework by framework.

    answer({"verb": "trim", "tracebacks": False, "collect": False}, pace)

Runs inside other people's programs: standard library only. It touches nothing but what is
imported there already, makes no CUDA context, prints nothing and raises nothing. Whether it
should still run is checked before, in :mod:`vram.payloads.delivery`.

Sizes that a framework does not report are None; "reclaimable" is what the framework itself
calls unused. Modules here import each other relatively, and only ones that come before them
(by depth, then by name, packages last): that is how they are loaded where there are no files.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ..pace import Pause, no_rest
from .driver import driver
from .framework import loaded
from .frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from .framework import Framework, Line

MAX_NOTE_LENGTH = 300
NO_CONTEXT = (
    "the driver's pools were not released: this process has no primary context, and a context that the"
    " program created itself (cuCtxCreate, PyCUDA) can be used only in the thread where it is current."
    " Call vram.flush() there"
)


def answer(request: dict[str, Any], pace: Pause = no_rest) -> dict[str, Any]:
    """Do what *request* asks for and report it. Never raises."""
    began = time.monotonic()
    # A graph that another thread captures is invalidated by most driver calls of any thread that
    # has not said that it is harmless, even by mere questions (seen with PyTorch 2.11 on an H200).
    with driver.harmless_to_captures():
        return measure_and_trim(request, began, pace)


def measure_and_trim(request: dict[str, Any], began: float, pace: Pause) -> dict[str, Any]:
    """Measure, release where that is asked for, measure again."""
    notes: list[str] = []
    frameworks = [each for kind in FRAMEWORKS for each in guarded(notes, kind.name, kind.find)]
    before = after = measured(frameworks, notes, pace)
    dropped: list[str] = []
    collected = 0
    if request["verb"] == "trim":
        if driver.count() and not driver.devices():
            notes.append(NO_CONTEXT)
        dropped, collected = release_all(
            frameworks,
            notes,
            forget=bool(request.get("tracebacks")),
            collect=bool(request.get("collect")),
            pace=pace,
        )
        after = measured(frameworks, notes, pace)
    return {
        "status": "done",
        "python": sys.version.split()[0],
        "devices": {str(each): driver.uuid(each) for each in driver.devices()},
        "lines": [{**each, "held_after": after.get(key, {}).get("held")} for key, each in before.items()],
        "collected": collected,
        "dropped": dropped,
        "exceptions_kept": sum(guarded(notes, "kept exceptions", count_kept_exceptions)),
        "notes": list(dict.fromkeys(notes)),
        "took_s": time.monotonic() - began,
    }


def guarded(notes: list[str], what: str, action: Callable[[], Iterable[Any]]) -> list[Any]:
    """All that *action* yields; a failure becomes a note, because the program must go on."""
    results: list[Any] = []
    try:
        for result in action():
            results.append(result)
    except Exception as error:
        notes.append(f"{what}: {type(error).__name__}: {error}"[:MAX_NOTE_LENGTH])
    return results


def measured(
    frameworks: list[Framework], notes: list[str], pace: Pause = no_rest
) -> dict[tuple[Any, ...], Line]:
    lines: dict[tuple[Any, ...], Line] = {}
    for each in frameworks:
        pace()
        for found in guarded(notes, each.name, each.measure):
            key = (found["name"], found["memory"], found["device"])
            lines[key] = merged(lines[key], found) if key in lines else found
    return lines


def merged(one: Line, other: Line) -> Line:
    def total(field: str) -> int | None:
        return None if None in (one[field], other[field]) else one[field] + other[field]

    return {**one, **{field: total(field) for field in ("held", "reclaimable", "used")}}


def release_all(
    frameworks: list[Framework], notes: list[str], *, forget: bool, collect: bool, pace: Pause = no_rest
) -> tuple[list[str], int]:
    """Return which exceptions were dropped and how many objects were collected.

    All or nothing: what a collection frees may be part of a graph that is being captured. A framework that
    fails to say whether it objects is taken to object. A collection is one call, during which no other thread
    runs: a third of a second for a million objects (PyTorch on an H200).
    """
    objections: list[str] = []
    for each in frameworks:
        objections += guarded(objections, each.name, each.objections)
        pace()
    notes += objections
    if objections:
        return [], 0
    may_free = all(each.may_collect() for each in frameworks)
    dropped = guarded(notes, "kept exceptions", drop_exceptions) if forget and may_free else []
    collected = gc.collect() if collect and may_free else 0
    for each in frameworks:
        pace()
        notes += guarded(notes, each.name, each.release)
    return dropped, collected


# ---- exceptions that are kept after they were shown: their frames refer to every local variable ----


_OF_PYTHON = ("last_exc", "last_value", "last_traceback", "last_type")
_OF_RESULTS, _OF_TRACEBACKS = ("error_in_exec", "error_before_exec"), ("tb", "etype", "evalue")


def drop_exceptions() -> Iterator[str]:
    """Forget the last uncaught exception wherever Python and IPython keep it; yield where that was.

    Its frames have ended, and often refer to themselves through the exception: their variables are cleared,
    because otherwise they would wait for a collection.
    """
    ended = [frame for each in _kept_exceptions() for frame in _frames(each.__traceback__)]
    for label, owner, name in _kept():
        setattr(owner, name, None)
        yield label
    for frame in ended:
        with suppress(RuntimeError):  # it runs, as that of a notebook does
            frame.clear()
            # Up to Python 3.12 a frame keeps a copy for readers of f_locals, as IPython 8: reading renews it.
            frame.f_locals  # noqa: B018


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _kept() -> list[tuple[str, Any, str]]:
    """Where Python and IPython keep something of an exception now: in words, the object and its attribute."""
    shell = getattr(loaded("IPython"), "get_ipython", lambda: None)()
    places: list[tuple[str, Any, str]] = [(f"sys.{name}", sys, name) for name in _OF_PYTHON]
    for label, attribute, names in (
        ("IPython's last result", "last_execution_result", _OF_RESULTS),
        ("IPython's traceback", "InteractiveTB", _OF_TRACEBACKS),
    ):
        places += [(f"{label} ({name})", getattr(shell, attribute, None), name) for name in names]
    return [place for place in places if getattr(place[1], place[2], None) is not None]


def count_kept_exceptions() -> Iterator[int]:
    """How many exceptions Python and IPython keep, with the frames they passed through.

    Those that the program itself keeps are not counted: finding them means reading every object.
    """
    yield sum(1 for each in _kept_exceptions() if each.__traceback__ is not None)


def _kept_exceptions() -> list[BaseException]:
    kept = [getattr(owner, name) for _, owner, name in _kept()]
    return list({id(each): each for each in kept if isinstance(each, BaseException)}.values())
