"""DOC"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from . import trim
from .arrays.frameworks import secondary_holders
from .arrays.heap.introspection import inert
from .arrays.heap.search import GONE, NATIVE, Holder, Trails, derived, shortest_unheld
from .arrays.inventory import Found, find, sifted
from .arrays.native_references import Owners, name_by_owners, owners_of, related
from .arrays.pace import Pace, Pause
from .arrays.provider import Description
from .arrays.record import Struct
from .trim.driver import driver
from .trim.frameworks import FRAMEWORKS

# ---- the arrays of this process ----


MOST_NAMED = 100_000
MOST_COMPARED = 500
NOT_SOUGHT = Holder("not looked for: smaller than those that were", "unknown")


class Seen(Struct, frozen=True, gc=False):
    """An array that was there, by its ``id``."""

    provider: Any
    key: int
    kind: type
    description: Description
    is_shared: bool


class Look(Struct):
    """Everything that was there, largest first, those that share memory told before them behind."""

    seen: list[Seen]
    trails: Trails
    sought: set[int]
    objects: int

    def holder(self, each: Seen) -> Holder:
        return self.trails.holder(each.key) if each.key in self.sought else NOT_SOUGHT


def look(budget_s: float, min_nbytes: int, pause: Pause, on: Pause, notes: list[str]) -> Look:
    """Look at the heap; names are sought for *budget_s* seconds of processor time at most.

    *pause* rests between two pieces of work, *on* only marks where one ends.
    """
    # As long as the list of all objects is there, nothing in it is freed: no rest before it is gone.
    heap: list[object] = gc.get_objects()
    on()
    objects = len(heap)
    candidates, types = sifted(heap, on)
    found = find(candidates, None, types, on, notes)
    candidates.clear()
    owners = owners_of(found)
    seen = sorted(map(_unheld, found), key=lambda each: (each.is_shared, -each.description.nbytes))
    del found
    sought = [each for each in seen[:MOST_NAMED] if each.description.nbytes >= min_nbytes]
    trails = _names(sought, seen, owners, types, budget_s, pause) if sought else Trails()
    return Look(seen, trails, {each.key for each in sought}, objects)


def _unheld(found: Found) -> Seen:
    return Seen(found.provider, id(found.array), type(found.array), found.description, found.is_shared)


def _names(
    sought: list[Seen], seen: list[Seen], owners: Owners, types: set[type], budget_s: float, pause: Pause
) -> Trails:
    keys = {each.key for each in sought}
    involved = keys | related(keys, seen, owners)
    theirs = [each for each in seen if each.key in involved]
    kind_of = {each.key: each.kind for each in theirs}
    compared = {each.key: each for each in theirs[:MOST_COMPARED]}

    def is_same(key: int, met: object) -> bool:
        return type(met) is kind_of[key] and (key not in compared or _describes(compared[key], met))

    aside = derived(types, secondary_holders())
    unheld = {each.kind for each in seen}
    trails = shortest_unheld(kind_of, is_same, unheld, budget_s, aside, pause)
    # A training step frees its gradients all the time: whose they were when they were seen is known.
    trails.told.update((key, NATIVE) for key in owners if trails.told.get(key) == GONE)
    name_by_owners(theirs, trails, owners)
    return trails


def _describes(seen: Seen, met: object) -> bool:
    """Whether what has the ``id`` now lies where that array lay."""
    for describe in (seen.provider.describe, seen.provider.describe_blocks):
        try:
            told = next(iter(describe([met], set())), None)
        except Exception:  # another thread has closed it, or it is none of that kind
            continue
        if told is not None:
            same: bool = told.pointer == seen.description.pointer
            return same
    return False


# ---- groups of alike arrays ----


_POSITION = re.compile(r"\[(\d{1,18})\]")
_STANDS_FOR_ANY = 999_999_999_999_999_999
LONGEST_TEXT, LONGEST_WORD, MOST_DIMENSIONS = 300, 60, 16
AT_ONCE = 100


def groups(look: Look, pause: Pause) -> list[dict[str, Any]]:
    """All that was seen, alike ones together, largest first."""
    members: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    stems = _Stems(look)
    for number, each in enumerate(look.seen):
        kind, stem, positions = stems.of(each)
        members.setdefault((*_alike(each), kind, stem), []).append(positions)
        if number % AT_ONCE == 0:
            pause()
    found = [_group(key, positions) for key, positions in members.items()]
    return sorted(found, key=lambda group: (group["is_shared"], -group["nbytes"]))


class _Stems:
    """Who refers to an array: the kind, the words without their positions, and the positions."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._by_parent: dict[int, tuple[str, str, list[int], int]] = {}

    def of(self, each: Seen) -> tuple[str, str, tuple[int, ...]]:
        trails = self._look.trails
        link = trails.links.get(each.key)
        if type(link) is not int or each.key in trails.told or each.key not in self._look.sought:
            holder = self._look.holder(each)
            stem, positions = _parted(holder.text)
            return holder.kind, stem, tuple(positions)
        parent = trails.up[each.key]
        if parent not in self._by_parent:
            self._by_parent[parent] = self._of_members(parent)
        kind, stem, positions, slot = self._by_parent[parent]
        return kind, stem, (*positions[:slot], link, *positions[slot + 1 :])

    def _of_members(self, parent: int) -> tuple[str, str, list[int], int]:
        """What the words for each member of a list have in common, and where its position stands in them."""
        words = self._look.trails.words(parent).then(f"[{_STANDS_FOR_ANY}]")
        stem, positions = _parted(words.text())
        slot = positions.index(_STANDS_FOR_ANY) if _STANDS_FOR_ANY in positions else len(positions)
        return words.kind, stem, positions, slot


def _parted(text: str) -> tuple[str, list[int]]:
    return _POSITION.sub("[]", text), list(map(int, _POSITION.findall(text)))


def _alike(each: Seen) -> tuple[Any, ...]:
    told = each.description
    return (
        str(each.provider.NAME),
        told.device,
        _text(told.dtype, LONGEST_WORD),
        tuple(told.shape[:MOST_DIMENSIONS]),
        told.nbytes,
        _text(told.note, LONGEST_TEXT),
        each.is_shared,
    )


def _group(key: tuple[Any, ...], positions: list[tuple[int, ...]]) -> dict[str, Any]:
    framework, device, dtype, shape, nbytes, note, is_shared, kind, stem = key
    count = len(positions)
    return {
        "framework": framework,
        "device": device,
        "dtype": dtype,
        "shape": list(shape),
        "count": count,
        "each_nbytes": nbytes,
        "nbytes": 0 if is_shared else nbytes * count,
        "is_shared": is_shared,
        "note": note,
        "held_by": _text(_spanned(stem, positions), LONGEST_TEXT),
        "kind": kind,
    }


def _spanned(stem: str, positions: list[tuple[int, ...]]) -> str:
    """*stem* with its positions again: one for all, or from the first to the last if none is missing."""
    words = stem.split("[]")
    text = words[0]
    for slot, word in enumerate(words[1:]):
        there = {each[slot] for each in positions if slot < len(each)}
        text += f"[{_span(there)}]{word}"
    return text


def _span(there: set[int]) -> str:
    if not there:
        return "…"
    first, last = min(there), max(there)
    if first == last:
        return str(first)
    return f"{first}…{last}" if len(there) == last - first + 1 else "…"


def _text(text: str, most: int) -> str:
    shown = inert(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


# ---- the answer ----


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
            name = str(each.provider.NAME)
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
