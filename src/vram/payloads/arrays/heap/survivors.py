"""What the collector would not free, of objects that no name leads to.

The collector frees a cycle only if every reference to its members comes from objects that are freed with
it. A reference from native code shows in the reference count alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from ...pace import Pause, no_rest
from .referents import SLICE, Lengths, referents


def survivors(apart: list[object], but: Iterable[int], lists: int, pause: Pause = no_rest) -> set[int]:
    """The ``id`` of every object in *apart* that is held from outside of it, and of what those refer to.

    *lists*: how many lists hold each object now, *apart* included. Objects with an ``id`` in *but* are
    held by the caller: they survive only through others. A reference that another thread makes meanwhile
    counts as one from outside.
    """
    lengths = Lengths()
    inside: Counter[int] = Counter()
    for members in referents(apart, lengths):
        inside.update(map(id, members))
        pause()
    # For the element of a list: one reference is the list's, one the call's.
    (alone,) = map(sys.getrefcount, [[]])
    counted = zip(apart, list(map(sys.getrefcount, apart)))
    exempt, within = set(but), set[int]()
    held: list[object] = []
    while part := list(islice(counted, SLICE)):
        keys = [id(each) for each, _ in part]
        within.update(keys)
        held += [
            each
            for key, (each, count) in zip(keys, part)
            if count - alone - (lists - 1) > inside[key] and key not in exempt
        ]
        pause()
    return _reached(held, within, lengths, pause)


def _reached(held: list[object], within: set[int], lengths: Lengths, pause: Pause) -> set[int]:
    found = set(map(id, held))
    while held:
        further: list[object] = []
        for members in referents(held, lengths):
            by_key = {id(each): each for each in members}
            fresh = within.intersection(by_key).difference(found)
            found |= fresh
            further += map(by_key.__getitem__, fresh)
            pause()
        held = further
    return found
