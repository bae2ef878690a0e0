"""For objects that somebody keeps: the shortest way to each, from a name that a person knows.

Works on a snapshot of the heap and gives back text alone. Everything that it held on the way
is let go of when it returns.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from types import GeneratorType

from vram.guard.heap.links import children
from vram.guard.heap.naming import Naming
from vram.guard.heap.peek import inert, lineage, type_name
from vram.guard.heap.roots import Roots
from vram.guard.heap.survivors import survivors
from vram.guard.heap.trails import UNKNOWN, Holder, Trails
from vram.guard.heap.walk import Walk, first_parents
from vram.guard.heap.words import Words, extended

LONGEST_CLIMB = 64
BUDGET_S = 2.0


NATIVE = Holder("no Python object: a running expression, or native code", "native")


def shortest(
    targets: Sequence[object],
    heap: list[object],
    budget_s: float = BUDGET_S,
    bystanders: Sequence[type] = (),
    types: Iterable[type] | None = None,
) -> Trails:
    """One way to each of *targets*, by its ``id``.

    *heap* is ``gc.get_objects()`` from before anything was looked at. It comes back empty: as
    long as it holds everything, nobody can tell who else does. A way through an instance of a
    class of *bystanders* is told only where there is no other. *types* are those in the heap, where known.
    """
    with _Search(targets, heap, budget_s, bystanders, types) as search:
        search.walk.run(also_untracked=search.hides)
        search.name(map(id, targets))
        trails = search.naming.trails
        missing = search.walk.missing
        if missing:
            trails.told.update(search.without_names(missing))
        trails.was_cut = search.walk.was_cut
        return trails


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
    def __init__(
        self,
        targets: Sequence[object],
        heap: list[object],
        budget_s: float,
        bystanders: Sequence[type] = (),
        types: Iterable[type] | None = None,
    ) -> None:
        self._heap = heap
        self._targets = frozenset(map(id, targets))
        self.roots = Roots()
        # What the collector does not know is met only by looking into what it ignores as well.
        self.hides = not all(map(gc.is_tracked, targets))
        met = (set(map(type, heap)) if types is None else types) if bystanders else ()
        aside = {kind for kind in met if any(each in lineage(kind) for each in bystanders)}
        self.walk = Walk(self.roots.namespaces, map(id, targets), budget_s, frozenset(aside))
        self.naming = Naming(self.roots)

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *raised: object) -> None:
        self._heap.clear()
        self.walk.let_go()
        self.naming.let_go()
        self.roots.let_go()

    def name(self, wanted: Iterable[int]) -> None:
        """Tell the way to all that is wanted and was reached, from its beginning on."""
        for kept in self.walk.ways(wanted):
            self.naming.tell(kept)

    def direct(self, target: object, most: int) -> Iterator[Holder]:
        """A holder for each object that refers to *target* itself."""
        keepers = self.walk.every_parent(id(target))[:most]
        self.name(map(id, keepers))
        for keeper in keepers:
            words = self.naming.words(keeper, id(target))
            if words is not None:
                yield Holder(words.text(), words.kind)

    def without_names(self, missing: set[int]) -> dict[int, Holder]:
        """What can be said of objects that no namespace leads to."""
        if self.walk.was_cut:
            return dict.fromkeys(missing, UNKNOWN)
        reached, own = self.walk.origin, {id(self.roots.namespaces), id(self.walk.portions)}
        apart = [each for each in self._heap if id(each) not in reached and id(each) not in own]
        alive = survivors(apart, but=self._targets, lists=2)
        index = first_parents(apart)
        return {key: self._climbed(key, index, is_held=key in alive) for key in missing}

    def _climbed(self, key: int, index: dict[int, object], *, is_held: bool) -> Holder:
        path: list[object] = []
        seen = {key}
        at = key
        while at in index and len(path) < LONGEST_CLIMB:
            parent = index[at]
            path.append(parent)
            at = id(parent)
            if at in seen:
                return _cycle(parent, is_held=is_held)
            seen.add(at)
        return self._from_top(path, key) if path else NATIVE

    def _from_top(self, path: list[object], key: int) -> Holder:
        path.reverse()
        top = path[0]
        words = Words("native", f"a {_type(top)} that no Python name leads to")
        role = None
        for parent, child in zip(path, [*map(id, path[1:]), key], strict=True):
            [(_, link, role)] = children(parent, role, {child}, self.roots)
            words = extended(words, link)
        kind = "generator" if type(top) is GeneratorType else words.kind
        return Holder(words.text(), kind)


def _cycle(member: object, *, is_held: bool) -> Holder:
    words = f"a cycle through a {_type(member)}"
    if is_held:
        return Holder(f"{words}, and something outside Python's sight", "native")
    return Holder(f"{words}: gc.collect() frees it", "cycle")


def _type(obj: object) -> str:
    return inert(type_name(obj))
