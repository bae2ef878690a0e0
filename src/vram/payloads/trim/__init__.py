"""Let go of what this process only caches, and say how much there was, framework by framework.

    answer({"verb": "trim", "tracebacks": False})

Runs inside other people's programs: standard library only. It touches nothing but what is
imported there already, makes no CUDA context, prints nothing and raises nothing. Whether it
is still wanted is checked before, in :mod:`vram.payloads.delivery`.

Sizes that a framework does not tell are None; "reclaimable" is what the framework itself
calls unused. Modules here import each other relatively, and only ones that come before them
(by depth, then by name, packages last): that is how they are loaded where there are no files.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import tracebacks
from .driver import driver
from .frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from .framework import Framework, Line

LONGEST_NOTE = 300
NO_CONTEXT = (
    "the driver's pools were left as they are: this process has no primary context, and one that the program "
    "made itself (cuCtxCreate, PyCUDA) can be entered only where it is current. vram.flush() there does it"
)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what *request* asks for and tell it all. Never raises."""
    began = time.monotonic()
    # A graph that another thread captures is invalidated by most driver calls of any thread that
    # has not said that it is harmless, even by mere questions (seen with PyTorch 2.11 on an H200).
    with driver.harmless_to_captures():
        return visit(request, began)


def visit(request: dict[str, Any], began: float) -> dict[str, Any]:
    """Measure, let go where that is asked for, measure again."""
    notes: list[str] = []
    frameworks = [each for kind in FRAMEWORKS for each in guarded(notes, kind.name, kind.find)]
    before = after = measured(frameworks, notes)
    dropped: list[str] = []
    collected = 0
    if request["verb"] == "trim":
        if driver.count() and not driver.devices():
            notes.append(NO_CONTEXT)
        dropped, collected = let_go(frameworks, notes, forget=bool(request.get("tracebacks")))
        after = measured(frameworks, notes)
    return {
        "status": "done",
        "python": sys.version.split()[0],
        "devices": {str(each): driver.uuid(each) for each in driver.devices()},
        "lines": [{**each, "held_after": after.get(key, {}).get("held")} for key, each in before.items()],
        "collected": collected,
        "dropped": dropped,
        "exceptions_kept": sum(guarded(notes, "kept exceptions", tracebacks.others)),
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
        notes.append(f"{what}: {type(error).__name__}: {error}"[:LONGEST_NOTE])
    return results


def measured(frameworks: list[Framework], notes: list[str]) -> dict[tuple[Any, ...], Line]:
    lines: dict[tuple[Any, ...], Line] = {}
    for each in frameworks:
        for found in guarded(notes, each.name, each.measure):
            key = (found["name"], found["memory"], found["device"])
            lines[key] = merged(lines[key], found) if key in lines else found
    return lines


def merged(one: Line, other: Line) -> Line:
    def total(field: str) -> int | None:
        return None if None in (one[field], other[field]) else one[field] + other[field]

    return {**one, **{field: total(field) for field in ("held", "reclaimable", "used")}}


def let_go(frameworks: list[Framework], notes: list[str], *, forget: bool) -> tuple[list[str], int]:
    """Return which exceptions were forgotten and how many objects were collected.

    All or nothing: what a collection frees may be what a graph is being recorded from. Who
    cannot tell whether it objects is taken to object.
    """
    objections: list[str] = []
    for each in frameworks:
        objections += guarded(objections, each.name, each.objections)
    notes += objections
    if objections:
        return [], 0
    may_free = all(each.may_collect() for each in frameworks)
    dropped = guarded(notes, "kept exceptions", tracebacks.drop) if forget and may_free else []
    collected = gc.collect() if may_free else 0
    for each in frameworks:
        notes += guarded(notes, each.name, each.release)
    return dropped, collected
