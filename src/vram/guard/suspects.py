"""Which arrays a scope left behind, and who keeps them.

What was there before is told by a look at the beginning. That look walks the heap, so it is
taken only where it costs less than a hundredth of the scope's own time, as far as known.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

from msgspec.structs import replace

from vram.guard.footprint import OUTSIDE
from vram.guard.known import Known
from vram.guard.table import what
from vram.model.leak import Kept, Leak
from vram.payloads.arrays.frameworks import LEAVES, bystanders
from vram.payloads.arrays.frameworks.array import Description, Leaf
from vram.payloads.arrays.heap.chains import shortest
from vram.payloads.arrays.inventory import Found, find, of_types, with_gradients
from vram.payloads.arrays.unseen import name_keepers, relatives

SHARE = 0.01
MOST_NAMES = 1000
NAMED = 10
# A model of a thousand layers has some ten thousand objects; beyond that lies the whole program.
FARTHEST = 100_000
_NOT_INSIDE = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType)


class _Spent(NamedTuple):
    look_s: float
    body_s: float


_spent: dict[str, _Spent] = {}


class Baseline:
    """Which arrays lived when a scope began."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.perf_counter()
        self.known: Known | None = None
        self._look_s = _spent[name].look_s if name in _spent else 0.0

    @classmethod
    def take(cls, name: str, *, wanted: bool | None) -> Baseline:
        """Look where *wanted*; None leaves it to what the last time of that name cost."""
        taken = cls(name)
        last = _spent.get(name)
        if wanted or (wanted is None and (last is None or last.look_s <= SHARE * last.body_s)):
            taken.known = _known_arrays()
            taken._look_s = time.perf_counter() - taken._began
        return taken

    def close(self) -> None:
        """Remember what it cost, for the next scope of that name."""
        if len(_spent) >= MOST_NAMES:
            _spent.clear()
        _spent[self._name] = _Spent(self._look_s, time.perf_counter() - self._began)


def named(leak: Leak, known: Known | None) -> Leak:
    """*leak* with the arrays that are behind it and their keepers; *known* were there before."""
    notes = list(leak.notes)
    places = {gain.where for gain in leak.gains}

    def is_suspect(found: Found) -> bool:
        if known is not None:
            return found.array not in known
        return found.leaf.NAME in places or OUTSIDE in places

    kept = _told(is_suspect, NAMED)
    if known is None and kept:
        notes.append("which of these are new was not looked at: track=True does")
    if not kept:
        notes.append("no array of a framework explains it: look for allocations that are nobody's to free")
    return replace(leak, kept=tuple(kept), notes=tuple(notes))


def largest(count: int) -> list[Kept]:
    """The largest live arrays of all frameworks and who keeps them."""
    return _told(lambda _: True, count)


def arrays_in(value: object) -> Iterator[tuple[Leaf, object, Description]]:
    """The arrays on a GPU inside *value*, views of the same memory each for itself."""
    inside = list(_inside([value]))
    for leaf in LEAVES:
        kinds = leaf.arrays()
        mine = with_gradients(leaf, [each for each in inside if kinds and issubclass(type(each), kinds)])
        for array, told in zip(mine, leaf.describe(mine, set()) if mine else (), strict=True):
            if told is not None:
                yield leaf, array, told


def has_array(values: Iterable[object]) -> bool:
    """Whether an array of any loaded framework is among *values* or inside one of them."""
    kinds = tuple(kind for leaf in LEAVES for kind in leaf.arrays())
    return bool(kinds) and any(issubclass(type(each), kinds) for each in _inside(values))


def _inside(values: Iterable[object]) -> Iterator[object]:
    """*values* and what they consist of; not what they merely use, such as classes and modules."""
    waiting = [each for each in values if not issubclass(type(each), _NOT_INSIDE)]
    seen = set(map(id, waiting))
    for _ in range(FARTHEST):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        for child in gc.get_referents(each) if gc.is_tracked(each) else ():
            if id(child) not in seen and not issubclass(type(child), _NOT_INSIDE):
                seen.add(id(child))
                waiting.append(child)


def _known_arrays() -> Known:
    """Every array that the collector knows, told by types alone, and their gradients."""
    of_leaves = [(leaf, kinds) for leaf in LEAVES if (kinds := leaf.arrays())]
    if not of_leaves:
        return Known()
    heap = gc.get_objects()
    types = set(map(type, heap))
    known: list[object] = []
    for leaf, kinds in of_leaves:
        wanted = {kind for kind in types if issubclass(kind, kinds)}
        known += with_gradients(leaf, list(of_types(heap, wanted)))
    return Known(known)


def _told(is_wanted: Callable[[Found], bool], count: int) -> list[Kept]:
    """The largest of the arrays that are wanted, each memory once, with the shortest way to it."""
    heap = gc.get_objects()
    everything = find(heap)
    found = [each for each in everything if not each.is_shared and is_wanted(each)]
    chosen = sorted(found, key=lambda each: -each.description.nbytes)[:count]
    del found
    involved = [*chosen, *relatives(chosen, everything)]
    del everything
    trails = shortest([each.array for each in involved], heap, bystanders=bystanders())
    name_keepers(involved, trails)
    return [
        Kept(what=_words(each), nbytes=each.description.nbytes, keeper=trails.holder(id(each.array)).text)
        for each in chosen
    ]


def _words(found: Found) -> str:
    told = found.description
    where = "" if told.device is None else f" on GPU {told.device}"
    note = f" ({told.note})" if told.note else ""
    return f"{found.leaf.NAME} {what(told)}".rstrip() + where + note
