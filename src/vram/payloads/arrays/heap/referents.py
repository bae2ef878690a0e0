"""What objects refer to, read in parts, and which of them refers to an object first.

Inside another program no call may take long, since no other thread runs meanwhile. So a part refers to LARGE
objects at most, and a container with more members is read by itself, piece by piece.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, compress, islice, repeat
from typing import TYPE_CHECKING, Any

from ...pace import Pause, no_rest
from .introspection import attributes, lineage

# Above this, other threads would wait too long for one call: such work is divided.
LARGE = 5_000
SLICE = 1_000
HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC

# ---- parts ----

if TYPE_CHECKING:
    LengthByType = dict[type, Callable[[Any], int]]
else:
    LengthByType = dict


class Lengths(LengthByType):
    """How to count the members of an object without running its code, by its type."""

    CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, deque)

    def __missing__(self, kind: type) -> Callable[[Any], int]:
        bases = lineage(kind)
        # What is no container has few members: is_tracked is 0 or 1, and runs no code either.
        counts = (each.__len__ for each in self.CONTAINERS if each in bases)
        length = self[kind] = next(counts, gc.is_tracked)
        return length

    def of(self, objects: Sequence[object]) -> list[int]:
        return [self[type(each)](each) for each in objects]


def parts(objects: Sequence[object], lengths: Lengths) -> Iterator[Sequence[object]]:
    """*objects* in their order: SLICE at a time, which refer to LARGE at most, or a single one."""
    for begin in range(0, len(objects), SLICE):
        piece = objects[begin : begin + SLICE]
        counted = lengths.of(piece)
        start = total = 0
        for at, length in enumerate(counted if sum(counted) > LARGE else ()):
            if at > start and total + length > LARGE:
                yield piece[start:at]
                start, total = at, 0
            total += length
        yield piece[start:]


def referents(objects: Sequence[object], lengths: Lengths) -> Iterator[list[object]]:
    """What all of *objects* refer to, LARGE at a time."""
    for part in parts(objects, lengths):
        if len(part) == 1 and lengths.of(part)[0] > LARGE:
            yield from members_in_parts(part[0])
        else:
            yield gc.get_referents(*part)


def members_in_parts(container: Any) -> Iterator[list[object]]:
    """What a very large container refers to. One that changes meanwhile is read again, in one call."""
    try:
        yield from _parts_of(container)
    except RuntimeError:
        yield gc.get_referents(container)


def _parts_of(container: Any) -> Iterator[list[object]]:
    bases = lineage(type(container))
    for kind in (list, tuple):
        if kind in bases:
            for start in range(0, kind.__len__(container), LARGE):
                yield list(kind.__getitem__(container, slice(start, start + LARGE)))
    members: Iterator[object] = iter(())
    if dict in bases:
        members = chain.from_iterable(dict.items(container))
    for other in (set, frozenset, deque):
        if other in bases:
            members = other.__iter__(container)
    while part := list(islice(members, LARGE)):
        yield part
    if type(container) not in Lengths.CONTAINERS:
        own = attributes(container)
        yield [own] if own else []


def unlisted_in(
    objects: Sequence[object], pause: Pause = no_rest, types: frozenset[type] = frozenset()
) -> list[object]:
    """What *objects* refer to, and what is in that, of those that tracked_objects() does not list: tuples,
    and objects of *types*."""
    unlisted = types | {tuple}
    found: dict[int, object] = {}
    lengths = Lengths()
    while objects:
        fresh: dict[int, object] = {}
        for members in referents(objects, lengths):
            theirs = [each for each in members if type(each) in unlisted and gc.is_tracked(each)]
            fresh.update(zip(map(id, theirs), theirs))
            pause()
        objects = [each for key, each in fresh.items() if key not in found]
        found.update(fresh)
    return list(found.values())


# ---- parents ----


def first_parents_of(parents: Sequence[object], children: set[int], pause: Pause) -> dict[int, object]:
    """The first of *parents* that refers to each child, by the child's ``id``."""
    if len(parents) == 1:
        return dict.fromkeys(children, parents[0])
    theirs = list(map(gc.get_referents, parents))
    if pause is not no_rest and sum(map(len, theirs)) > LARGE:
        return _one_by_one(parents, theirs, children, pause)
    keys = list(map(id, chain.from_iterable(theirs)))
    is_wanted = list(map(children.__contains__, keys))
    owners = list(compress(_owners(parents, theirs), is_wanted))
    return _first(list(compress(keys, is_wanted)), owners)


def _one_by_one(
    parents: Sequence[object], theirs: list[list[object]], children: set[int], pause: Pause
) -> dict[int, object]:
    """The same if one of them refers to very many."""
    kept: dict[int, object] = {}
    left = set(children)
    for parent, its in zip(parents, theirs):
        here = left.intersection(map(id, its))
        left -= here
        kept.update(dict.fromkeys(here, parent))
        pause()
    return kept


def first_parents(parents: Sequence[object], pause: Pause = no_rest) -> dict[int, object]:
    """The first of *parents* that refers to each object, by the object's ``id``."""
    found: dict[int, object] = {}
    lengths = Lengths()
    # From the end: a dict keeps the last of equal keys.
    for part in parts(parents[::-1], lengths):
        if len(part) == 1:
            for members in referents(part, lengths):
                found.update(dict.fromkeys(map(id, members), part[0]))
                pause()
        else:
            theirs = list(map(gc.get_referents, part))
            found.update(zip(map(id, chain.from_iterable(theirs)), _owners(part, theirs)))
            pause()
    return found


def _owners(parents: Sequence[object], theirs: list[list[object]]) -> Iterator[object]:
    """Each parent as often as it has referents."""
    return chain.from_iterable(map(repeat, parents, map(len, theirs)))


def _first(keys: list[int], values: list[object]) -> dict[int, object]:
    # A dict keeps the last of equal keys.
    return dict(zip(reversed(keys), reversed(values)))


# ---- what the collector would not free, of objects that no name leads to ----
#
# It frees a cycle only if every reference to its members comes from objects that are freed with it. A
# reference from native code shows in the reference count alone.


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


# ---- the collector ----


def untrack(ours: list[Any] | set[int]) -> None:
    """Hide a container of ours from the collector, which would read it again: 50 ms for two million members.

    It cannot free what is in it, which is right: we hold it. Not tracked, it is freed as any other.
    """
    with suppress(AttributeError):  # an interpreter that does not export its functions
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(ours))


def unreadable_objects() -> tuple[object, ...]:
    """Objects whose referents must not be read; what they refer to has names in namespaces, too.

    Python 3.12.0 to 3.12.5: the module _asyncio reports freed objects that it will reuse among its
    referents. Read and dropped, they are freed a second time, and the collector's next run never
    ends (CPython's issue 122695).
    """
    module = sys.modules.get("_asyncio")
    return () if module is None else (module,)


def is_hidden_from_collector(kind: type) -> bool:
    """Whether the collector does not track objects of *kind*, so that only a walk finds them."""
    return not kind.__flags__ & HAS_GC
