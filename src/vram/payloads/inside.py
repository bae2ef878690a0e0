"""Report the arrays of this process on GPUs, who refers to them, and what else holds memory there.

    answer({"until": 1234.5, "limit_s": 8.0, "budget_s": 5.0, "most": 500, "min_nbytes": 0}, pace)

Runs inside other people's programs, as :mod:`vram.payloads.trim` does, and as carefully: standard library
only, no framework is imported or started, no code of any object is run, nothing is raised. It works in
slices of a few milliseconds, so that the program goes on, and its answer is bounded.

A program that trains frees and allocates all the time. An array held for the length of a search would be
memory missing to it, and gradients alone are as large as a model. So each array is described when it is met
and released at once. One walk from the program's names finds the arrays and the way to each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from . import trim
from .arrays.frameworks import secondary_holders
from .arrays.heap.introspection import inert
from .arrays.heap.references import spanned, split_positions
from .arrays.heap.search import MAX_LISTED, NATIVE, Discovery, ObjectHolder, ReferencePaths
from .arrays.inventory import ArrayInventory, ArrayRecord
from .arrays.native_references import name_by_array_holders, possible_holder_keys
from .arrays.record import Struct
from .pace import Pace, Pause
from .trim.driver import driver
from .trim.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from typing import TypeAlias  # since Python 3.10

# ---- the arrays of this process ----

MAX_NAMED = 100_000
MAX_COMPARED = 500
NOT_SEARCHED = ObjectHolder("not searched: smaller than those that were", "unknown")
MANY_OBJECTS = (
    f"of more than {MAX_LISTED:,} objects only the newest are searched for arrays that no name leads to"
)

OLD_TORCH = "PyTorch before 2.10: tensors that only PyTorch refers to, as autograd does, are not listed"


class ArrayReading(Struct):
    """All arrays that existed, largest first; those that share the memory of another come last."""

    arrays: list[ArrayRecord]
    paths: ReferencePaths
    searched: set[int]
    objects: int

    def holder(self, each: ArrayRecord) -> ObjectHolder:
        return self.paths.holder(each.key) if each.key in self.searched else NOT_SEARCHED


def read_arrays(budget_s: float, min_nbytes: int, pause: Pause, notes: list[str]) -> ArrayReading:
    """Read all arrays, in *budget_s* of processor time at most; *pause* rests between parts of the work."""
    inventory = ArrayInventory(notes)
    if not inventory.kinds:
        return ArrayReading([], ReferencePaths(), set(), 0)
    with Discovery(inventory.kinds, inventory.add, budget_s, secondary_holders(), pause) as heap:
        heap.run()
        arrays = inventory.records()
        pause()
        arrays.sort(key=lambda each: (each.is_shared, -each.description.nbytes))
        searched = {each.key for each in arrays[:MAX_NAMED] if each.description.nbytes >= min_nbytes}
        pause()
        paths = _find_paths(heap, searched, arrays, inventory)
    if not heap.lists_all:
        notes.append(MANY_OBJECTS)
    if heap.left_out:
        notes.append(OLD_TORCH)
    return ArrayReading(arrays, paths, searched, heap.objects)


def _find_paths(
    heap: Discovery, searched: set[int], arrays: list[ArrayRecord], inventory: ArrayInventory
) -> ReferencePaths:
    involved = searched | possible_holder_keys(searched, arrays, inventory.holders)
    compared = [each for each in arrays[:MAX_COMPARED] if each.key in searched]
    paths = heap.paths(involved, {each.key: partial(_is_same_array, each) for each in compared})
    # A gradient may be known without an object that refers to it, or be freed by now: whose it was is known.
    gone = (key for key in inventory.holders if paths.holders.get(key, NATIVE).kind == "gone")
    paths.holders.update(dict.fromkeys(list(gone), NATIVE))
    theirs = [each for each in arrays if each.key in involved]
    name_by_array_holders(theirs, paths, inventory.holders)
    return paths


def _is_same_array(record: ArrayRecord, met: object) -> bool:
    """Whether the object with that ``id`` has the address of the recorded array."""
    if type(met) is not record.kind:
        return False
    for describe in (record.provider.describe, record.provider.describe_blocks):
        try:
            now = next(iter(describe([met], set())), None)
        except Exception:  # another thread has closed it, or it is none of that kind
            continue
        if now is not None:
            same: bool = now.pointer == record.description.pointer
            return same
    return False


# ---- groups of alike arrays ----

_ANY_POSITION = 999_999_999_999_999_999
MAX_TEXT_LENGTH, MAX_WORD_LENGTH, MAX_DIMENSIONS = 300, 60, 16
AT_ONCE = 100
Members: TypeAlias = "list[tuple[tuple[int, ...], int]]"


def groups(reading: ArrayReading, pause: Pause) -> list[dict[str, Any]]:
    """All arrays, those that are alike in one group, largest first."""
    found = [_group(key, members) for key, members in grouped(reading, pause)]
    return sorted(found, key=lambda group: (group["is_shared"], -group["nbytes"]))


def grouped(reading: ArrayReading, pause: Pause) -> Iterable[tuple[tuple[Any, ...], Members]]:
    """The same, as what those of a group have in common and the positions and address of each."""
    members: dict[tuple[Any, ...], Members] = {}
    stems = _Stems(reading)
    for number, each in enumerate(reading.arrays):
        kind, stem, positions = stems.of(each)
        place = positions, each.description.pointer
        members.setdefault((*_alike(each), kind, stem), []).append(place)
        if number % AT_ONCE == 0:
            pause()
    return members.items()


def group_name(stem: str, members: Members) -> str:
    """Who refers to the arrays of a group, in one line."""
    return _text(spanned(stem, [positions for positions, _ in members]), MAX_TEXT_LENGTH)


class _Stems:
    """Who refers to an array: the kind, the path without its positions, and the positions."""

    def __init__(self, reading: ArrayReading) -> None:
        self._reading = reading
        self._by_parent: dict[int, tuple[str, str, list[int], int]] = {}

    def of(self, each: ArrayRecord) -> tuple[str, str, tuple[int, ...]]:
        paths = self._reading.paths
        link = paths.links.get(each.key)
        if type(link) is not int or each.key in paths.holders or each.key not in self._reading.searched:
            holder = self._reading.holder(each)
            stem, positions = split_positions(holder.text)
            return holder.kind, stem, tuple(positions)
        parent = paths.parent[each.key]
        if parent not in self._by_parent:
            self._by_parent[parent] = self._of_members(parent)
        kind, stem, positions, slot = self._by_parent[parent]
        return kind, stem, (*positions[:slot], link, *positions[slot + 1 :])

    def _of_members(self, parent: int) -> tuple[str, str, list[int], int]:
        """What the paths of all members of a list have in common, and where the position is in them."""
        path = self._reading.paths.path(parent).append(f"[{_ANY_POSITION}]")
        stem, positions = split_positions(path.text())
        slot = positions.index(_ANY_POSITION) if _ANY_POSITION in positions else len(positions)
        return path.kind, stem, positions, slot


def _alike(each: ArrayRecord) -> tuple[Any, ...]:
    array = each.description
    return (
        str(each.provider.NAME),
        array.device,
        _text(array.dtype, MAX_WORD_LENGTH),
        tuple(array.shape[:MAX_DIMENSIONS]),
        array.nbytes,
        _text(array.note, MAX_TEXT_LENGTH),
        each.is_shared,
    )


def _group(key: tuple[Any, ...], members: Members) -> dict[str, Any]:
    framework, device, dtype, shape, nbytes, note, is_shared, kind, stem = key
    count = len(members)
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
        "held_by": group_name(stem, members),
        "kind": kind,
    }


def _text(text: str, most: int) -> str:
    shown = inert(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


# ---- the answer ----

BUDGET_S = 5.0
MAX_GROUPS, MAX_BYTES, MAX_NOTES = 500, 400_000, 20
# The share of the given time that is reserved for writing the answer.
FOR_THE_ANSWER = 0.2


def answer(request: dict[str, Any], pace: Pace | None = None) -> dict[str, Any]:
    """Read the arrays and return the answer. Never raises."""
    began = time.monotonic()
    notes: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(driver.harmless_to_captures())
        answers = trim.guarded(notes, "arrays", lambda: _answer(request, began, notes, stack, pace or Pace()))
    whole: dict[str, Any] = answers[0] if answers else {"status": "failed"}
    return {"status": "done", **whole, "notes": list(dict.fromkeys(notes))[:MAX_NOTES]}


def _answer(
    request: dict[str, Any], began: float, notes: list[str], stack: ExitStack, pace: Pace
) -> Iterator[dict[str, Any]]:
    left_s = min(request["until"] - began, float(request.get("limit_s", BUDGET_S)))
    pace.until = began + left_s * (1 - FOR_THE_ANSWER)
    frameworks = [each for kind in FRAMEWORKS for each in trim.guarded(notes, kind.name, kind.find)]
    lines = trim.measured(frameworks, notes, pace)
    devices = driver.devices()
    if devices:
        # This thread has no context, and the driver answers some calls only inside one.
        stack.enter_context(driver.inside(devices[0]))
    pace()
    budget_s = min(float(request.get("budget_s", BUDGET_S)), left_s)
    found = read_arrays(budget_s, int(request.get("min_nbytes", 0)), pace, notes)
    by_framework: dict[str, int] = {}
    for each in found.arrays:
        if not each.is_shared:
            name = str(each.provider.NAME)
            by_framework[name] = by_framework.get(name, 0) + each.description.nbytes
    pace()
    shown, left_out = _limit(groups(found, pace), int(request.get("most", MAX_GROUPS)))
    pace()
    yield {
        "python": sys.version.split()[0],
        "devices": {str(each): driver.uuid(each) for each in devices},
        "lines": [{**each, "held_after": each["held"]} for each in lines.values()],
        "objects": found.objects,
        "arrays": len(found.arrays),
        "nbytes": sum(by_framework.values()),
        "frameworks": by_framework,
        "groups": shown,
        "left_out": left_out,
        "was_cut": found.paths.was_cut,
        "took_s": time.monotonic() - began,
        "worked_s": pace.worked_s,
        "longest_s": pace.longest_s,
    }


def _limit(found: list[dict[str, Any]], most: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The largest groups that fit into an answer, and how much was left out."""
    shown, length = [], 0
    for each in found[:most]:
        length += len(json.dumps(each)) + 2
        if length > MAX_BYTES:
            break
        shown.append(each)
    rest = found[len(shown) :]
    return shown, {
        "groups": len(rest),
        "arrays": sum(each["count"] for each in rest),
        "nbytes": sum(each["nbytes"] for each in rest),
    }
