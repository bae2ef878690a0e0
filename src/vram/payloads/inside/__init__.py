"""Say what arrays this process has on GPUs, who refers to them, and what else is kept there.

    answer({"until": 1234.5, "limit_s": 8.0, "budget_s": 5.0, "most": 500, "min_nbytes": 0})

Runs inside other people's programs, as :mod:`vram.payloads.trim` does, and as carefully: standard
library only, no framework is imported or woken for it, no code of any object met is run, nothing is
raised. It works in short stretches, so that the program goes on, and its answer is bounded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from .. import trim
from ..arrays.pace import Pace
from ..trim.driver import driver
from ..trim.frameworks import FRAMEWORKS
from .groups import groups
from .look import look

BUDGET_S = 5.0
MOST_GROUPS, MOST_BYTES, MOST_NOTES = 500, 400_000, 20
# Kept back of the time given, for writing the answer.
FOR_THE_ANSWER = 0.2


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Look, and tell it all. Never raises."""
    began = time.monotonic()
    notes: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(driver.harmless_to_captures())
        told = trim.guarded(notes, "arrays", lambda: _told(request, began, notes, stack))
    whole: dict[str, Any] = told[0] if told else {"status": "failed"}
    return {"status": "done", **whole, "notes": list(dict.fromkeys(notes))[:MOST_NOTES]}


def _told(
    request: dict[str, Any], began: float, notes: list[str], stack: ExitStack
) -> Iterator[dict[str, Any]]:
    left_s = min(request["until"] - began, float(request.get("limit_s", BUDGET_S)))
    pace = Pace(began + left_s * (1 - FOR_THE_ANSWER))
    frameworks = [each for kind in FRAMEWORKS for each in trim.guarded(notes, kind.name, kind.find)]
    lines = trim.measured(frameworks, notes)
    devices = driver.devices()
    if devices:
        # This thread has no context, and the driver answers some questions only to one that has.
        stack.enter_context(driver.inside(devices[0]))
    pace()
    budget_s = min(float(request.get("budget_s", BUDGET_S)), left_s)
    found = look(budget_s, int(request.get("min_nbytes", 0)), pace, pace.on, notes)
    by_framework: dict[str, int] = {}
    for each in found.seen:
        if not each.is_shared:
            name = str(each.leaf.NAME)
            by_framework[name] = by_framework.get(name, 0) + each.description.nbytes
    shown, left_out = _bounded(groups(found, pace), int(request.get("most", MOST_GROUPS)))
    pace()
    yield {
        "python": sys.version.split()[0],
        "devices": {str(each): driver.uuid(each) for each in devices},
        "lines": [{**each, "held_after": each["held"]} for each in lines.values()],
        "objects": found.objects,
        "arrays": len(found.seen),
        "nbytes": sum(by_framework.values()),
        "frameworks": by_framework,
        "groups": shown,
        "left_out": left_out,
        "was_cut": found.trails.was_cut,
        "took_s": time.monotonic() - began,
        "worked_s": pace.worked_s,
        "longest_s": pace.longest_s,
    }


def _bounded(found: list[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The largest of them, as far as an answer goes, and what was left out."""
    shown, length = [], 0
    for each in found[:most]:
        length += len(json.dumps(each)) + 2
        if length > MOST_BYTES:
            break
        shown.append(each)
    rest = found[len(shown) :]
    return shown, {
        "groups": len(rest),
        "arrays": sum(each["count"] for each in rest),
        "nbytes": sum(each["nbytes"] for each in rest),
    }
