"""One walk over the heap, from the program's names to the objects that are searched.

Going back from an object by ``gc.get_referrers`` reads the whole heap for every step. This goes forward
instead, breadth first and in large portions: each portion's referents are fetched, compared with known
ones and stored by calls that loop in C, so a heap of a million objects takes well under a second. Only
the portion in which an object was found is stored; which of its members refers to the object is found
later, for those that matter.

Inside another program no call may take long, since no other thread runs meanwhile. ``gc.get_objects()``
of three million objects takes up to 0.1 s, and so does making a set of as many larger: neither is done.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, filterfalse, repeat
from operator import eq, not_

from ...pace import Pause, no_rest
from .introspection import lineage
from .referents import LARGE, Lengths, first_parents_of, members_in_parts, parts, unreadable_objects, untrack

PORTION = 256
FEW = 8
# A set of so many entries grows next when it has more: that takes a few milliseconds.
MAX_IN_SET = 150_000
# There a reference count does not say how many refer to an object.
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
ROOT = -1


class ByLineage(dict[type, bool]):
    """Whether a type is, or derives from, one of some classes; each type is judged once."""

    def __init__(self, bases: Iterable[type]) -> None:
        super().__init__()
        self._none_of = frozenset(bases).isdisjoint

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = not self._none_of(lineage(kind))
        return found

    def any_of(self, found: Iterable[object]) -> bool:
        return any(map(self.__getitem__, set(map(type, found))))


class Reached:
    """The ``id`` of objects that were reached, in sets of *largest* entries at most.

    To make one with a million entries larger takes tens of milliseconds, in one call. The collector does not
    know them: in the list of all objects they would be read as if they were the program's.
    """

    def __init__(self, largest: float) -> None:
        self._largest = largest
        self._layers: list[set[int]] = []
        self.clear()

    def missing(self, keys: Iterable[int]) -> list[int]:
        """Those of *keys* that were not reached, in their order."""
        left = list(keys)
        for layer in self._layers:
            left = list(filterfalse(layer.__contains__, left))
        return left

    def add(self, keys: Collection[int]) -> None:
        if len(self._layers[-1]) + len(keys) > self._largest:
            self._add_layer()
        self._layers[-1].update(keys)

    def clear(self) -> None:
        self._layers.clear()
        self._add_layer()

    def _add_layer(self) -> None:
        self._layers.append(set())
        untrack(self._layers[-1])


class Walk:
    """Every object that was reached, in portions, each with the portions that its objects were found in.

    *secondary*: classes whose objects refer to much that is not theirs, such as optimizers. A path through
    one is used only if there is no other.

    The walk holds every object that it met, so that no ``id`` is reused meanwhile: call :meth:`release`
    before returning what was found. Objects of the classes *unheld* it does not hold: they are given to
    *take* at once, which returns what of that which they refer to is to be followed. *pause* is called
    between portions, and says when to stop.
    """

    def __init__(
        self,
        roots: Sequence[object],
        targets: Iterable[int],
        budget_s: float,
        secondary: Iterable[type] = (),
        unheld: ByLineage | None = None,
        take: Callable[[list[object]], list[object]] | None = None,
        pause: Pause = no_rest,
    ) -> None:
        # The portions that were read and those that are still to be read, in the order of the walk.
        self.portions: list[Sequence[object]] = []
        # For each of them: in which portion its objects were found; a list where these are several.
        self._sources: list[int | list[int]] = []
        # The portion in which each target, or object that is not held, was found.
        self.found_in: dict[int, int] = {}
        self.portions_with: dict[int, list[int]] = {}
        self.was_cut = False
        self._roots = roots
        self._targets = set(targets)
        self._secondary = ByLineage(secondary)
        self._unheld, self._take, self._pause = unheld, take, pause
        self._is_paced = pause is not no_rest
        self.reached = Reached(MAX_IN_SET if self._is_paced else float("inf"))
        self._lengths = Lengths()
        self._gathered: list[object] = []
        self._gathered_in: list[int] = []
        self._waiting: list[object] = []
        self._waiting_in: list[int] = []
        self._all_parents = self._also_untracked = False
        # In processor time of this thread: on a busy machine the search is slower, not less complete.
        self._deadline = time.thread_time() + budget_s

    @property
    def missing(self) -> set[int]:
        return self._targets.difference(self.found_in)

    @property
    def objects(self) -> int:
        """How many objects were met."""
        return sum(map(len, self.portions)) + len(self._gathered) + len(self._waiting) + len(self.found_in)

    def run(self, *, all_parents: bool = False, also_untracked: bool = False) -> Walk:
        """Walk until every target is reached; with *all_parents* or *take* to the end of the heap.

        *also_untracked* follows tuples and dicts that the collector ignores since they hold
        nothing it knows: objects of types without collector support hide in them.
        """
        self._all_parents, self._also_untracked = all_parents, also_untracked
        everything = all_parents or self._take is not None
        keys = list(map(id, (*self._roots, *unreadable_objects())))
        self.reached.add(keys)
        self.found_in.update(dict.fromkeys(self._targets.intersection(keys), ROOT))
        self._enqueue(list(self._roots), ROOT)
        number = 0
        while (self.missing_count or everything) and self._has_portion(number):
            self._step(number)
            number += 1
            if self._pause() or time.thread_time() > self._deadline:
                self.was_cut = everything or bool(self.missing_count)
                break
        return self

    @property
    def missing_count(self) -> int:
        return len(self._targets) - len(self.found_in) if self._targets else 0

    # ---- the queue ----

    def _enqueue(self, found: list[object], source: int) -> None:
        """What is *found* in the portion *source* is read later, in portions."""
        start = 0
        while start < len(found):
            part = found[start : start + PORTION - len(self._gathered)]
            start += len(part)
            self._gathered += part
            self._gathered_in += repeat(source, len(part))
            if len(self._gathered) == PORTION:
                self._append(self._gathered, self._gathered_in)
                self._gathered, self._gathered_in = [], []

    def _append(self, portion: list[object], sources: list[int]) -> None:
        """A portion refers to LARGE objects at most; what refers to more is a portion of its own."""
        start = 0
        for part in parts(portion, self._lengths) if self._is_paced else (portion,):
            self._append_part(list(part), sources[start : start + len(part)])
            start += len(part)

    def _append_part(self, portion: list[object], sources: list[int]) -> None:
        if self._is_paced:
            untrack(portion)
            untrack(sources)
        self.portions.append(portion)
        self._sources.append(sources[0] if sources[0] == sources[-1] else sources)

    def _has_portion(self, number: int) -> bool:
        """A path through a target, or a secondary holder, is used only if there is no other: those wait."""
        for objects, sources in ((self._gathered, self._gathered_in), (self._waiting, self._waiting_in)):
            if number == len(self.portions):
                for start in range(0, len(objects), PORTION):
                    self._append(objects[start : start + PORTION], sources[start : start + PORTION])
                objects.clear()
                sources.clear()
        return number < len(self.portions)

    # ---- one portion ----

    def _step(self, number: int) -> None:
        portion = self.portions[number]
        if len(portion) > 1 or not self._is_paced or not self.is_large(portion[0]):
            self._note(gc.get_referents(*portion), number)
            return
        for part in members_in_parts(portion[0]):
            self._note(part, number)
            self._pause()

    def is_large(self, container: object) -> bool:
        """Whether it refers to so many objects that to read all of them in one call would take too long."""
        return self._lengths.of([container])[0] > LARGE

    def _note(self, referents: list[object], number: int) -> None:
        is_one = self._may_lead_on if self._also_untracked else gc.is_tracked
        tracked = list(filter(is_one, referents))
        once: list[object] = []
        if self._is_paced and not FREE_THREADED:
            tracked, once = _split_by_references(tracked)
        found = dict(zip(map(id, tracked), tracked))
        # In the order of the referents, so that what comes first stays first.
        fresh = self.reached.missing(found)
        self.reached.add(fresh)
        if self._targets:
            fresh = self._without_targets(found, fresh, number)
        self._follow(list(map(found.__getitem__, fresh)) + once, number)

    def _without_targets(self, found: dict[int, object], fresh: list[int], number: int) -> list[int]:
        seen = self._targets.intersection(found)
        if seen and self._all_parents:
            for target in seen:
                self.portions_with.setdefault(target, []).append(number)
        met = seen.intersection(fresh)
        if not met:
            return fresh
        self.found_in.update(dict.fromkeys(met, number))
        self._wait(list(map(found.__getitem__, met)), number)
        return [key for key in fresh if key not in met]

    def _wait(self, objects: list[object], number: int) -> None:
        self._waiting += objects
        self._waiting_in += repeat(number, len(objects))

    def _follow(self, found: list[object], number: int) -> None:
        if self._unheld is not None and self._unheld.any_of(found):
            found, unheld = _split(found, self._unheld)
            keys = list(map(id, unheld))
            self.reached.add(keys)
            self.found_in.update(zip(keys, repeat(number)))
            self._enqueue(self.lead_on(unheld), ROOT)
        if self._secondary.any_of(found):
            found, secondary = _split(found, self._secondary)
            self._wait(secondary, number)
        if self._also_untracked:
            found = list(filter(_is_followed, found))
        self._enqueue(found, number)

    def lead_on(self, unheld: list[object]) -> list[object]:
        """Give objects away that are not held; returns the new ones that they lead to."""
        assert self._take is not None
        assert self._unheld is not None
        kept: list[object] = []
        while unheld:
            further: list[object] = []
            for part in parts(unheld, self._lengths):
                referents = {id(each): each for each in self._take(list(part))}
                fresh = self.reached.missing(referents)
                self.reached.add(fresh)
                held, more = _split(list(map(referents.__getitem__, fresh)), self._unheld)
                kept += held
                further += more
                self._pause()
            unheld = further
        return kept

    def complete_reached(self) -> None:
        """Note also those objects that only one other refers to: the walk itself does not need to know."""
        for portion in chain(self.portions, (self._gathered, self._waiting)):
            self.reached.add(list(map(id, portion)))
            self._pause()

    def find_again(self, keys: set[int]) -> set[int]:
        """Those of *keys*, objects that were not met, that objects refer to which were read before."""
        found: dict[int, int] = {}
        for number, portion in enumerate(self.portions if keys else ()):
            if len(portion) > 1 or not self.is_large(portion[0]):
                met = keys.intersection(map(id, gc.get_referents(*portion)))
                found.update(dict.fromkeys(met.difference(found), number))
                self._pause()
        self.found_in.update(found)
        return set(found)

    def _may_lead_on(self, found: object) -> bool:
        if gc.is_tracked(found) or type(found) is dict or type(found) is tuple or id(found) in self._targets:
            return True
        return self._unheld is not None and self._unheld[type(found)]

    # ---- paths ----

    def parents(self, wanted: Iterable[int]) -> Iterator[dict[int, object]]:
        """The parent of every object on the paths to the wanted ones, by the object's ``id``.

        One dict for each portion, from the roots on. A parent is always in an earlier portion than its
        children, because portions are numbered in the order of the walk: one pass backwards finds everything.
        """
        found: list[dict[int, object]] = []
        by_portion: defaultdict[int, set[int]] = defaultdict(set)
        keys = list(wanted)
        _sort(keys, list(map(self.found_in.get, keys, repeat(ROOT))), by_portion)
        for number in range(len(self.portions) - 1, -1, -1):
            children = by_portion.pop(number, None)
            if children:
                kept = first_parents_of(self.portions[number], children, self._pause)
                found.append(kept)
                self._sort_parents(number, set(map(id, kept.values())), by_portion)
        while found:
            yield found.pop()

    def _sort_parents(self, number: int, parents: set[int], by_portion: defaultdict[int, set[int]]) -> None:
        sources = self._sources[number]
        if isinstance(sources, int):
            by_portion[sources] |= parents
            return
        keys = list(map(id, self.portions[number]))
        are_wanted = list(map(parents.__contains__, keys))
        _sort(list(compress(keys, are_wanted)), list(compress(sources, are_wanted)), by_portion)

    def release(self) -> None:
        """Part by part: to free a list of millions is one long call, too."""
        self._gathered.clear()
        self._waiting.clear()
        while self.portions:
            self.portions.pop()
            self._pause()
        self._sources.clear()
        self.found_in.clear()
        self.reached.clear()

    def every_parent(self, target: int) -> list[object]:
        """All objects met that refer to *target* directly; :meth:`parents` finds the paths to them, too."""
        found = []
        for number in self.portions_with.get(target, ()):
            sources = self._sources[number]
            for at, parent in enumerate(self.portions[number]):
                if any(id(child) == target for child in gc.get_referents(parent)):
                    found.append(parent)
                    self.found_in[id(parent)] = sources if isinstance(sources, int) else sources[at]
        return found


def _sort(keys: list[int], numbers: list[int], by_portion: defaultdict[int, set[int]]) -> None:
    distinct = set(numbers)
    if len(distinct) <= FEW:  # as for a hundred thousand in one list: loops that run in C
        for number in distinct:
            by_portion[number].update(compress(keys, map(eq, numbers, repeat(number))))
        return
    for key, number in zip(keys, numbers):
        by_portion[number].add(key)


def _split_by_references(tracked: list[object]) -> tuple[list[object], list[object]]:
    """Objects that several others refer to, and those that only one does: no other way leads there.

    Most objects of a large program are records in one place: those need not be compared with all that
    was reached, which takes most of the time. *tracked* must be the second list that holds them.
    """
    (alone,) = map(sys.getrefcount, [[]])
    are_several = list(map((alone + 2).__lt__, map(sys.getrefcount, tracked)))
    return list(compress(tracked, are_several)), list(compress(tracked, map(not_, are_several)))


def _split(found: list[object], are: ByLineage) -> tuple[list[object], list[object]]:
    """The objects of other types, and those of the types in question."""
    flags = list(map(are.__getitem__, map(type, found)))
    return list(compress(found, map(not_, flags))), list(compress(found, flags))


def _is_followed(found: object) -> bool:
    return gc.is_tracked(found) or type(found) is dict or type(found) is tuple
