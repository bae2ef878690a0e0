"""For objects that somebody keeps: the shortest way to each, from a name that a person knows.

Works on a snapshot of the heap and gives back text alone. Everything that it held on the way
is let go of when it returns.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from types import GeneratorType

from msgspec import Struct

from vram.guard.heap.links import Words, children
from vram.guard.heap.peek import inert, type_name
from vram.guard.heap.roots import Roots
from vram.guard.heap.walk import Walk, is_hidden_from_collector

LONGEST_CLIMB = 64
BUDGET_S = 2.0


class Holder(Struct, frozen=True, gc=False):
    """One way in which an object is kept, as a person would say it.

    ``kind`` is what keeps it in the end: cell, output, module, frame, exception, thread,
    closure, generator; cycle (nothing but itself: the collector frees it), native (nothing that
    Python can see) or unknown (the search was cut short).
    """

    text: str
    kind: str

    def __str__(self) -> str:
        return self.text


class Chains(Struct, frozen=True):
    """Each object's holder by its ``id``; ``was_cut`` when time ran out before all were found."""

    by_id: dict[int, Holder]
    was_cut: bool


UNKNOWN = Holder("not found in the time given", "unknown")
NATIVE = Holder("no Python object: a running expression, or native code", "native")


def shortest(targets: Sequence[object], heap: list[object], budget_s: float = BUDGET_S) -> Chains:
    """One holder for each of *targets*.

    *heap* is ``gc.get_objects()`` from before anything was looked at. It comes back empty: as
    long as it holds everything, nobody can tell who else does.
    """
    with _Search(targets, heap, budget_s) as search:
        search.walk.run(also_untracked=search.hides)
        named = search.words(id(target) for target in targets)
        found = {key: Holder(words.text(), words.kind) for key, words in named.items()}
        missing = search.walk.missing
        if missing:
            found.update(search.without_names(missing))
        return Chains(found, search.walk.was_cut)


def every(
    target: object, heap: list[object], budget_s: float = BUDGET_S, most: int = 20
) -> tuple[tuple[Holder, ...], bool]:
    """A holder for each object that refers to *target* itself, and whether the search was cut short."""
    with _Search([target], heap, budget_s) as search:
        search.walk.run(every_keeper=True, also_untracked=search.hides)
        holders = list(search.direct(target, most))
        if not holders:
            holders += search.without_names({id(target)}).values()
        return tuple(dict.fromkeys(holders)), search.walk.was_cut


class _Search:
    def __init__(self, targets: Sequence[object], heap: list[object], budget_s: float) -> None:
        self._heap = heap
        self.roots = Roots()
        self.hides = any(is_hidden_from_collector(kind) for kind in set(map(type, targets)))
        self.walk = Walk(self.roots.namespaces, map(id, targets), budget_s)

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *raised: object) -> None:
        self._heap.clear()
        self.walk.let_go()
        self.roots.let_go()

    def direct(self, target: object, most: int) -> Iterator[Holder]:
        """A holder for each object that refers to *target* itself."""
        keepers = self.walk.every_parent(id(target))[:most]
        named = self.words(id(keeper) for keeper in keepers)
        for keeper in keepers:
            if id(keeper) in named:
                words = children(keeper, named[id(keeper)], {id(target)}, self.roots)[id(target)]
                yield Holder(words.text(), words.kind)

    def words(self, wanted: Iterable[int]) -> dict[int, Words]:
        """The words for everything that the walk reached, from its beginning on."""
        keys = list(wanted)
        named = {key: Words(root.kind, "", root.before, root.after) for key, root in self.roots.by_id.items()}
        for parent, kept in self.walk.edges(keys):
            named.update(children(parent, named[id(parent)], kept, self.roots))
        return {key: named[key] for key in keys if key in named}

    def without_names(self, missing: set[int]) -> dict[int, Holder]:
        """What can be said of objects that no namespace leads to."""
        if self.walk.was_cut:
            return dict.fromkeys(missing, UNKNOWN)
        reached, own = self.walk.origin, {id(self.roots.namespaces), id(self.walk.portions)}
        apart = [each for each in self._heap if id(each) not in reached and id(each) not in own]
        index: dict[int, object] = {}
        for parent in apart:
            for child in gc.get_referents(parent):
                index.setdefault(id(child), parent)
        return {key: self._climbed(key, index) for key in missing}

    def _climbed(self, key: int, index: dict[int, object]) -> Holder:
        path: list[object] = []
        seen = {key}
        at = key
        while at in index and len(path) < LONGEST_CLIMB:
            parent = index[at]
            path.append(parent)
            at = id(parent)
            if at in seen:
                return Holder(f"a cycle through a {_type(parent)}: gc.collect() frees it", "cycle")
            seen.add(at)
        return self._from_top(path, key) if path else NATIVE

    def _from_top(self, path: list[object], key: int) -> Holder:
        path.reverse()
        top = path[0]
        words = Words("native", f"a {_type(top)} that no Python name leads to")
        for parent, child in zip(path, [*map(id, path[1:]), key], strict=True):
            words = children(parent, words, {child}, self.roots)[child]
        kind = "generator" if type(top) is GeneratorType else words.kind
        return Holder(words.text(), kind)


def _type(obj: object) -> str:
    return inert(type_name(obj))
