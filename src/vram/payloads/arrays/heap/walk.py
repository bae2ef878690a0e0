"""One walk over the heap, from the program's names to the objects that are searched.

Going back from an object by ``gc.get_referrers`` reads the whole heap for every step. This goes forward
instead, breadth first and in large portions: each portion's referents are fetched, compared with known
ones and stored by calls that loop in C, so a heap of a million objects takes well under a second. Only
the portion in which an object was found is stored; which of its members refers to the object is found
later, for those that matter.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import eq

from ..pace import Pause, no_rest

PORTION = 256
FEW = 8
# Above this, other threads would wait too long for one call: such work is divided.
LARGE = 5_000
HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC


class Walk:
    """Every object that was reached, by the number of the portion that refers to it.

    *secondary*: types whose objects refer to much that is not theirs, such as optimizers. A path through
    one is used only if there is no other.

    The walk holds every object that it met, so that no ``id`` is reused meanwhile: call :meth:`release`
    before returning what was found. With *is_same* it holds no target, nor anything else of the types
    *unheld*, and does not follow them: *is_same* says whether an object with a target's ``id`` still is
    that target. *pause* is called between portions, and says when to stop.
    """

    def __init__(
        self,
        roots: Sequence[object],
        targets: Iterable[int],
        budget_s: float,
        secondary: frozenset[type] = frozenset(),
        is_same: Callable[[int, object], bool] | None = None,
        unheld: frozenset[type] = frozenset(),
        pause: Pause = no_rest,
    ) -> None:
        self.origin: dict[int, int] = {}
        self.portions: list[Sequence[object]] = []
        self.portions_with: dict[int, list[int]] = {}
        self.was_cut = False
        self._roots = roots
        self._targets = set(targets)
        self._secondary = secondary
        self._is_same, self._unheld, self._pause = is_same, unheld, pause
        self._all_parents = self._also_untracked = False
        # In processor time of this thread: on a busy machine the search is slower, not less complete.
        self._deadline = time.thread_time() + budget_s

    @property
    def missing(self) -> set[int]:
        return self._targets.difference(self.origin)

    def run(self, *, all_parents: bool = False, also_untracked: bool = False) -> Walk:
        """Walk until every target is reached; with *all_parents* to the end of the heap.

        *also_untracked* follows tuples and dicts that the collector ignores since they hold
        nothing it knows: objects of types without collector support hide in them.
        """
        self._all_parents, self._also_untracked = all_parents, also_untracked
        self.origin.update((id(each), -1) for each in (*self._roots, *unreadable_objects()))
        left = len(self._targets.difference(self.origin))
        frontier: list[object] = list(self._roots)
        # A path through another target, or through a secondary holder, is used only if there is no other:
        # those objects are followed last.
        waiting: list[object] = []
        while frontier and (left or all_parents):
            reached: list[object] = []
            for start in range(0, len(frontier), PORTION):
                met, fresh = self._step(frontier[start : start + PORTION])
                left -= len(met)
                others, aside = self._split(fresh)
                waiting += aside if self._is_same is not None else met + aside
                reached += others
                if not left and not all_parents:
                    return self
                if self._pause() or time.thread_time() > self._deadline:
                    self.was_cut = True
                    return self
            frontier = reached
            if not frontier:
                frontier, waiting = waiting, []
        return self

    def _step(self, portion: Sequence[object]) -> tuple[list[object], list[object]]:
        """Read the referents of *portion*: new targets, and new objects to follow."""
        number = len(self.portions)
        self.portions.append(portion)
        referents = gc.get_referents(*portion)
        if len(referents) <= LARGE or self._pause is no_rest:
            return self._new(referents, number)
        met: list[object] = []
        others: list[object] = []
        for start in range(0, len(referents), LARGE):
            self._pause()
            some, more = self._new(referents[start : start + LARGE], number)
            met += some
            others += more
        return met, others

    def _new(self, referents: list[object], number: int) -> tuple[list[object], list[object]]:
        if not self._also_untracked:
            referents = list(filter(gc.is_tracked, referents))
        found = dict(zip(map(id, referents), referents))
        seen = self._targets.intersection(found)
        if seen and self._is_same is not None:
            same = {key for key in seen if self._is_same(key, found[key])}
            for key in seen - same:
                del found[key]  # another object has the id now
            seen = same
        if seen and self._all_parents:
            for target in seen:
                self.portions_with.setdefault(target, []).append(number)
        # In the order of the referents, so that what comes first stays first.
        fresh = [key for key in found if key not in self.origin]
        self.origin.update(dict.fromkeys(fresh, number))
        met = seen.intersection(fresh) if seen else seen
        if met:
            fresh = [key for key in fresh if key not in met]
        others = list(map(found.__getitem__, fresh))
        if self._also_untracked:
            others = list(filter(_is_followed, others))
        return list(map(found.__getitem__, met)), others

    def _split(self, found: list[object]) -> tuple[list[object], list[object]]:
        """What is followed at once, and the secondary holders."""
        if not self._unheld.isdisjoint(map(type, found)):
            found = [each for each in found if type(each) not in self._unheld]
        if self._secondary.isdisjoint(map(type, found)):
            return found, []
        aside = [each for each in found if type(each) in self._secondary]
        return [each for each in found if type(each) not in self._secondary], aside

    def parents(self, wanted: Iterable[int]) -> list[dict[int, object]]:
        """The parent of every object on the paths to the wanted ones, by the object's ``id``.

        One dict for each portion. A parent is always in an earlier portion than its children, because
        portions are numbered in the order of the walk: one pass backwards finds everything.
        """
        found: list[dict[int, object]] = []
        by_portion: defaultdict[int, set[int]] = defaultdict(set)
        self._sort(list(wanted), by_portion)
        for number in range(len(self.portions) - 1, -1, -1):
            children = by_portion.pop(number, None)
            if children:
                kept = _first_parents_of(self.portions[number], children, self._pause)
                found.append(kept)
                self._sort(list(set(map(id, kept.values()))), by_portion)
        found.reverse()
        return found

    def _sort(self, keys: list[int], by_portion: defaultdict[int, set[int]]) -> None:
        numbers = list(map(self.origin.get, keys, repeat(-1)))
        distinct = set(numbers)
        if len(distinct) <= FEW:  # as for a hundred thousand in one list: loops that run in C
            for number in distinct:
                by_portion[number].update(compress(keys, map(eq, numbers, repeat(number))))
            return
        for key, number in zip(keys, numbers):
            by_portion[number].add(key)

    def release(self) -> None:
        self.portions.clear()
        self.origin.clear()

    def every_parent(self, target: int) -> list[object]:
        """All objects met that refer to *target* directly."""
        found = []
        for number in self.portions_with.get(target, ()):
            for parent in self.portions[number]:
                if any(id(child) == target for child in gc.get_referents(parent)):
                    found.append(parent)
        return found


def _is_followed(found: object) -> bool:
    return gc.is_tracked(found) or type(found) is dict or type(found) is tuple


def _first_parents_of(parents: Sequence[object], children: set[int], pause: Pause) -> dict[int, object]:
    """The first of *parents* that refers to each child, by the child's ``id``."""
    if len(parents) == 1:
        return dict.fromkeys(children, parents[0])
    referents = list(map(gc.get_referents, parents))
    if pause is not no_rest and sum(map(len, referents)) > LARGE:
        return _one_by_one(parents, referents, children, pause)
    keys = list(map(id, chain.from_iterable(referents)))
    is_wanted = list(map(children.__contains__, keys))
    owners = list(compress(_owners(parents, referents), is_wanted))
    return _first(list(compress(keys, is_wanted)), owners)


def _one_by_one(
    parents: Sequence[object], referents: list[list[object]], children: set[int], pause: Pause
) -> dict[int, object]:
    """The same if one of them refers to very many."""
    kept: dict[int, object] = {}
    left = set(children)
    for parent, theirs in zip(parents, referents):
        here = left.intersection(map(id, theirs))
        left -= here
        kept.update(dict.fromkeys(here, parent))
        pause()
    return kept


def first_parents(parents: Sequence[object]) -> dict[int, object]:
    """The first of *parents* that refers to each object, by the object's ``id``."""
    referents = list(map(gc.get_referents, parents))
    return _first(list(map(id, chain.from_iterable(referents))), list(_owners(parents, referents)))


def _owners(parents: Sequence[object], referents: list[list[object]]) -> Iterator[object]:
    """Each parent as often as it has referents."""
    return chain.from_iterable(map(repeat, parents, map(len, referents)))


def _first(keys: list[int], values: list[object]) -> dict[int, object]:
    # A dict keeps the last of equal keys.
    return dict(zip(reversed(keys), reversed(values)))


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


# ---- what the collector would not free ----
#
# The collector frees a cycle only if every reference to its members comes from objects that are freed with
# it. A reference from native code shows in the reference count alone.


def survivors(apart: list[object], but: Iterable[int], lists: int) -> set[int]:
    """The ``id`` of every object in *apart* that is held from outside of it, and of what those refer to.

    *lists*: how many lists hold each object now, *apart* included. Objects with an ``id`` in *but* are
    held by the caller: they survive only through others. A reference that another thread makes meanwhile
    counts as one from outside.
    """
    inside = Counter(map(id, chain.from_iterable(map(gc.get_referents, apart))))
    # For the element of a list: one reference is the list's, one the call's.
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
