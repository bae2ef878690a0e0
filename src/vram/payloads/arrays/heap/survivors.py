"""What stays when the collector has run: objects that something holds which it cannot see.

The collector frees a cycle only if every reference to its members comes from objects that go with
it. Native code that holds one is seen by its reference count alone.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain


def survivors(apart: list[object], but: Iterable[int], lists: int) -> set[int]:
    """The ``id`` of all of *apart* that is held from outside of it, and of what those refer to.

    *lists* is how many lists hold each object now, *apart* among them. Objects with an ``id`` in
    *but* are held by whoever asks: they survive only through others. A reference that another thread
    takes meanwhile counts as one from outside.
    """
    inside = Counter(map(id, chain.from_iterable(map(gc.get_referents, apart))))
    # In a list of one, the count is that list's and the call's.
    (alone,) = map(sys.getrefcount, [[]])
    counts = list(map(sys.getrefcount, apart))
    exempt = set(but)
    held = [
        each
        for each, count in zip(apart, counts)
        if count - alone - (lists - 1) > inside[id(each)] and id(each) not in exempt
    ]
    return _reached(held, set(map(id, apart)))


def _reached(held: list[object], within: set[int]) -> set[int]:
    found = set(map(id, held))
    while held:
        referents = {id(each): each for each in gc.get_referents(*held)}
        fresh = within.intersection(referents).difference(found)
        found |= fresh
        held = [referents[key] for key in fresh]
    return found
