"""One look at the arrays of a program that goes on meanwhile: what there is, then who refers to it.

A program that trains frees and allocates all the time. An array that is held for the length of a
search would be memory missing to it, and gradients alone are as large as a model. So the
arrays are described first and let go of at once; the search for their names goes by their ``id``
and asks, of whatever it meets there, whether that still is the same array.
"""

from __future__ import annotations

import gc
from typing import Any

from ..arrays.frameworks import bystanders
from ..arrays.frameworks.array import Description
from ..arrays.heap.chains import GONE, NATIVE, derived, shortest_unheld
from ..arrays.heap.trails import Holder, Trails
from ..arrays.inventory import Found, find, sifted
from ..arrays.pace import Pause
from ..arrays.record import Struct
from ..arrays.unseen import Owners, name_by_owners, owners_of, related

MOST_NAMED = 100_000
MOST_COMPARED = 500
NOT_SOUGHT = Holder("not looked for: smaller than those that were", "unknown")


class Seen(Struct, frozen=True, gc=False):
    """An array that was there, by its ``id``."""

    leaf: Any
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
    return Seen(found.leaf, id(found.array), type(found.array), found.description, found.is_shared)


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

    aside = derived(types, bystanders())
    unheld = {each.kind for each in seen}
    trails = shortest_unheld(kind_of, is_same, unheld, budget_s, aside, pause)
    # A training step frees its gradients all the time: whose they were when they were seen is known.
    trails.told.update((key, NATIVE) for key in owners if trails.told.get(key) == GONE)
    name_by_owners(theirs, trails, owners)
    return trails


def _describes(seen: Seen, met: object) -> bool:
    """Whether what has the ``id`` now lies where that array lay."""
    for describe in (seen.leaf.describe, seen.leaf.describe_blocks):
        try:
            told = next(iter(describe([met], set())), None)
        except Exception:  # another thread has closed it, or it is none of that kind
            continue
        if told is not None:
            same: bool = told.pointer == seen.description.pointer
            return same
    return False
