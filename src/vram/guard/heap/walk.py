"""One walk over the heap, from names that people know to the objects that they ask about.

Going back from an object by ``gc.get_referrers`` looks through the whole heap for every step.
This goes forward instead, breadth first and in large portions: each portion's referents are
fetched, told from known ones and remembered by calls that loop in C, so a heap of a million
objects takes well under a second. Only the portion in which an object was found is
remembered; which of its members refers to it is found out later, for the few that matter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence

PORTION = 512
HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC


class Walk:
    """Everything that was reached, by the number of the portion that led to it.

    It holds every object that it has seen, so that no ``id`` is taken over by another one
    meanwhile: let go of it before handing back what was found.
    """

    def __init__(self, roots: Sequence[object], targets: Iterable[int], budget_s: float) -> None:
        self.origin: dict[int, int] = {}
        self.portions: list[Sequence[object]] = []
        self.sightings: dict[int, list[int]] = {}
        self.was_cut = False
        self._roots = roots
        self._targets = set(targets)
        # Of this thread's own processor time: a busy machine makes it slower, not shorter-sighted.
        self._deadline = time.thread_time() + budget_s

    @property
    def missing(self) -> set[int]:
        return {target for target in self._targets if target not in self.origin}

    def run(self, *, every_keeper: bool = False, also_untracked: bool = False) -> Walk:
        """Walk until every target is reached; with *every_keeper* on to the end of the heap.

        *also_untracked* follows tuples and dicts that the collector ignores since they hold
        nothing it knows: objects of types without collector support hide in them.
        """
        self.origin.update((id(root), -1) for root in self._roots)
        left = len(self._targets.difference(self.origin))
        frontier: list[object] = list(self._roots)
        # What leads through another target is its way too: those wait until nothing else does.
        waiting: list[object] = []
        while frontier and (left or every_keeper):
            reached: list[object] = []
            for start in range(0, len(frontier), PORTION):
                fresh = self._take(frontier[start : start + PORTION])
                met = self._targets.intersection(fresh) if fresh else ()
                waiting += [fresh.pop(key) for key in met]
                left -= len(met)
                reached += _worth_following(fresh.values(), also_untracked)
                if not left and not every_keeper:
                    return self
                if time.thread_time() > self._deadline:
                    self.was_cut = True
                    return self
            frontier = reached
            if not frontier:
                frontier, waiting = waiting, []
        return self

    def _take(self, portion: Sequence[object]) -> dict[int, object]:
        number = len(self.portions)
        self.portions.append(portion)
        referents = gc.get_referents(*portion)
        found = dict(zip(map(id, referents), referents, strict=True))
        if not self._targets.isdisjoint(found):
            for target in self._targets.intersection(found):
                self.sightings.setdefault(target, []).append(number)
        # Asking in this direction costs by the portion, not by all that is known already.
        fresh = set(found).difference(self.origin)
        self.origin.update(dict.fromkeys(fresh, number))
        # In the order of the referents, so that what comes first stays first.
        return {key: value for key, value in found.items() if key in fresh}

    def edges(self, wanted: Iterable[int]) -> list[tuple[object, set[int]]]:
        """The ways to all wanted objects: parents and which of their children are on such a way.

        A parent always comes before its children, because portions are numbered as they were
        walked: one pass back over them finds everything.
        """
        found: list[tuple[object, set[int]]] = []
        by_portion: dict[int, set[int]] = {}
        for key in wanted:
            by_portion.setdefault(self.origin.get(key, -1), set()).add(key)
        for number in range(len(self.portions) - 1, -1, -1):
            children = by_portion.pop(number, None)
            for parent, kept in self._keepers_in(number, children) if children else ():
                found.append((parent, kept))
                by_portion.setdefault(self.origin[id(parent)], set()).add(id(parent))
        found.reverse()
        return found

    def _keepers_in(self, number: int, children: set[int]) -> Iterable[tuple[object, set[int]]]:
        left = set(children)
        for parent in self.portions[number]:
            kept = left.intersection(map(id, gc.get_referents(parent)))
            if kept:
                yield parent, kept
                left -= kept
                if not left:
                    return

    def let_go(self) -> None:
        self.portions.clear()
        self.origin.clear()

    def every_parent(self, target: int) -> list[object]:
        """All objects seen that refer to *target* directly."""
        found = []
        for number in self.sightings.get(target, ()):
            for parent in self.portions[number]:
                if any(id(child) == target for child in gc.get_referents(parent)):
                    found.append(parent)
        return found


def _worth_following(found: Iterable[object], also_untracked: bool) -> list[object]:
    if not also_untracked:
        return list(filter(gc.is_tracked, found))
    return [each for each in found if gc.is_tracked(each) or type(each) is dict or type(each) is tuple]


def is_hidden_from_collector(kind: type) -> bool:
    """Whether the collector does not know objects of *kind*, so that only a walk meets them."""
    return not kind.__flags__ & HAS_GC
