"""DOC"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import eq, not_
from types import GeneratorType
from typing import TYPE_CHECKING

from ..pace import Pause, no_rest
from ..record import Struct
from .introspection import inert, lineage, members, type_name
from .references import Role, Words, children, extended, is_plain
from .roots import Roots
from .walk import Walk, first_parents, is_hidden_from_collector, survivors

if TYPE_CHECKING:
    from .references import Link

# ---- reference paths ----


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


UNKNOWN = Holder("not found in the time given", "unknown")


class Trails:
    """From each object, by its former ``id``, up to a name; holds no object that it met."""

    def __init__(self) -> None:
        self.up: dict[int, int] = {}
        self.links: dict[int, Link] = {}
        self.was_cut = False
        self.told: dict[int, Holder] = {}
        self._words: dict[int, Words] = {}

    def holder(self, key: int) -> Holder:
        told = self.told.get(key)
        if told is not None:
            return told
        if key not in self.links:
            return UNKNOWN
        words = self.words(key)
        return Holder(words.text(), words.kind)

    def words(self, key: int) -> Words:
        """What leads to *key*, in words; those of the objects above it are kept, since many share them."""
        way, at = [], key
        while at not in self._words and type(self.links[at]) is not Words:
            way.append(at)
            at = self.up[at]
        words = self._words.get(at) or self.links[at]
        assert isinstance(words, Words)
        for step in reversed(way):
            words = extended(words, self.links[step])
            if step != key:
                self._words[step] = words
        return words


# ---- naming ----


FEW = 4
SLICE = 50_000
_get = object.__getattribute__


class Naming:
    """Fills :attr:`trails`; parents must be told before their children."""

    def __init__(self, roots: Roots) -> None:
        self.trails = Trails()
        self._roots = roots
        self._roles: dict[int, Role] = {}

    def tell(self, kept: dict[int, object]) -> None:
        """Name objects, given by their ``id`` with the parent that leads to each."""
        parents = list(map(id, kept.values()))
        self.trails.up.update(zip(kept, parents))
        distinct = len(set(parents))
        if distinct == 1:
            self._each(next(iter(kept.values())), set(kept))
        elif distinct == len(kept) and len(kinds := set(map(type, kept.values()))) == 1:
            self._alike(kinds.pop(), kept)
        else:
            self._mixed(kept, Counter(parents))

    def _mixed(self, kept: dict[int, object], number_of: Counter[int]) -> None:
        several: dict[int, tuple[object, set[int]]] = {}
        alike: dict[type, dict[int, object]] = {}
        for key, parent in kept.items():
            if number_of[id(parent)] > 1:
                several.setdefault(id(parent), (parent, set()))[1].add(key)
            else:
                alike.setdefault(type(parent), {})[key] = parent
        for parent, keys in several.values():
            self._each(parent, keys)
        for kind, pairs in alike.items():
            self._alike(kind, pairs)

    def words(self, parent: object, child: int) -> Words | None:
        """The words for *child* through *parent*; None where the way to *parent* was not told."""
        [(_, link, _role)] = children(parent, self._roles.get(id(parent)), {child}, self._roots)
        if type(link) is Words:
            return link
        return extended(self.trails.words(id(parent)), link) if id(parent) in self.trails.links else None

    def let_go(self) -> None:
        self._roles.clear()

    def _each(self, parent: object, keys: set[int]) -> None:
        links, roles = self.trails.links, self._roles
        if len(keys) > FEW and type(parent) is list:
            keys = self._positions(parent, keys)
            if not keys:
                return
        for key, link, role in children(parent, roles.get(id(parent)), keys, self._roots):
            links[key] = link
            if role is not None:
                roles[key] = role

    def _positions(self, parent: list[object], keys: set[int]) -> set[int]:
        """Name what lies in a list; returns what another thread has taken out of it meanwhile."""
        position_of: dict[int, int] = {}
        for start in range((len(parent) - 1) // SLICE * SLICE, -1, -SLICE):  # from the end: first ones stay
            part = parent[start : start + SLICE]
            position_of.update(zip(map(id, reversed(part)), range(start + len(part) - 1, -1, -1)))
        there = keys.intersection(position_of)
        self.trails.links.update(zip(there, map(position_of.__getitem__, there)))
        return keys - there

    def _alike(self, kind: type, pairs: dict[int, object]) -> None:
        """Objects that are the only one to be named in their parent each; the parents are of one *kind*."""
        left = pairs
        if len(pairs) > FEW and is_plain(kind):
            first = next(iter(pairs))
            self._each(pairs[first], {first})
            left = self._together(kind, pairs)
        for key, parent in left.items():
            self._each(parent, {key})

    def _together(self, kind: type, pairs: dict[int, object]) -> dict[int, object]:
        """Name those that lie where all have the same attribute or slot; returns the others."""
        for name in self._roots.attribute_names[kind]:
            pairs = self._lying(f".{inert(name)}", map(_get, pairs.values(), repeat(name)), pairs)
        for name, member in members(kind):
            pairs = self._lying(f".{inert(name)}", map(member.__get__, pairs.values()), pairs)
        return pairs

    def _lying(self, link: str, values: Iterator[object], pairs: dict[int, object]) -> dict[int, object]:
        try:
            is_it = list(map(eq, map(id, values), pairs))
        except AttributeError:
            return pairs  # one of the parents does not have it
        self.trails.links.update(zip(compress(pairs, is_it), repeat(link)))
        return {} if all(is_it) else dict(compress(pairs.items(), map(not_, is_it)))


# ---- search ----


LONGEST_CLIMB = 64
BUDGET_S = 2.0


NATIVE = Holder("no Python object: a running expression, or native code", "native")
GONE = Holder("freed while this was looked for", "gone")


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
    types = (set(map(type, heap)) if types is None else types) if bystanders else ()
    # What the collector does not know is met only by looking into what it ignores as well.
    hides = not all(map(gc.is_tracked, targets))
    with _Search(set(map(id, targets)), heap, budget_s, derived(types, bystanders)) as search:
        return search.found(hides=hides)


def shortest_unheld(
    kind_of: dict[int, type],
    is_same: Callable[[int, object], bool],
    unheld: Iterable[type],
    budget_s: float,
    aside: frozenset[type],
    pause: Pause,
) -> Trails:
    """As :func:`shortest`, for objects given by ``id`` that nobody holds meanwhile: they may end at any time.

    *is_same* says whether an object still is the one that had its ``id``. Nothing of the types
    *unheld* is held for longer than one step takes: memory that a program frees must come free.
    *aside* are the types of bystanders.
    """
    with _Search(kind_of, [], budget_s, aside, is_same, frozenset(unheld), pause) as search:
        return search.found(hides=any(map(is_hidden_from_collector, set(kind_of.values()))))


def derived(types: Iterable[type], bases: Sequence[type]) -> frozenset[type]:
    """Those of *types* that are, or derive from, one of *bases*."""
    return frozenset(kind for kind in set(types) if any(each in lineage(kind) for each in bases))


def every(
    target: object, heap: list[object], budget_s: float = BUDGET_S, most: int = 20
) -> tuple[tuple[Holder, ...], bool]:
    """A holder for each object that refers to *target* itself, and whether the search was cut short."""
    with _Search({id(target)}, heap, budget_s) as search:
        search.walk.run(every_keeper=True, also_untracked=not gc.is_tracked(target))
        holders = list(search.direct(target, most))
        if not holders:
            holders += search.without_names({id(target)}).values()
        return tuple(dict.fromkeys(holders)), search.walk.was_cut


class _Search:
    def __init__(
        self,
        targets: Collection[int],
        heap: list[object],
        budget_s: float,
        aside: frozenset[type] = frozenset(),
        is_same: Callable[[int, object], bool] | None = None,
        unheld: frozenset[type] = frozenset(),
        pause: Pause = no_rest,
    ) -> None:
        self._heap = heap
        self._targets = targets
        self._is_same = is_same
        self._pause = pause
        self.roots = Roots() if is_same is None else Roots(unheld, _wanted(targets, is_same))
        left = set(targets).difference(self.roots.direct)
        self.walk = Walk(self.roots.namespaces, left, budget_s, aside, is_same, unheld, pause)
        self.naming = Naming(self.roots)
        self.naming.trails.links.update(self.roots.direct)

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *raised: object) -> None:
        self._heap.clear()
        self.walk.let_go()
        self.naming.let_go()
        self.roots.let_go()

    def found(self, *, hides: bool) -> Trails:
        """Walk, and tell the ways to all targets."""
        self.walk.run(also_untracked=hides)
        self.name(key for key in self._targets if key not in self.roots.direct)
        trails = self.naming.trails
        missing = self.walk.missing
        if missing and self._is_same is not None and not self.walk.was_cut:
            self._heap = gc.get_objects()
            if not hides:
                missing, gone = self._still_there(missing, self._is_same)
                trails.told.update(dict.fromkeys(gone, GONE))
        if missing:
            trails.told.update(self.without_names(missing))
        trails.was_cut = self.walk.was_cut
        return trails

    def _still_there(
        self, keys: set[int], is_same: Callable[[int, object], bool]
    ) -> tuple[set[int], set[int]]:
        there = {id(each) for each in self._heap if id(each) in keys and is_same(id(each), each)}
        return there, keys - there

    def name(self, wanted: Iterable[int]) -> None:
        """Tell the way to all that is wanted and was reached, from its beginning on."""
        for kept in self.walk.ways(wanted):
            self.naming.tell(kept)
            self._pause()

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
        for parent, child in zip(path, [*map(id, path[1:]), key]):
            [(_, link, role)] = children(parent, role, {child}, self.roots)
            words = extended(words, link)
        kind = "generator" if type(top) is GeneratorType else words.kind
        return Holder(words.text(), kind)


def _wanted(targets: Collection[int], is_same: Callable[[int, object], bool]) -> Callable[[object], bool]:
    return lambda met: id(met) in targets and is_same(id(met), met)


def _cycle(member: object, *, is_held: bool) -> Holder:
    words = f"a cycle through a {_type(member)}"
    if is_held:
        return Holder(f"{words}, and something outside Python's sight", "native")
    return Holder(f"{words}: gc.collect() frees it", "cycle")


def _type(obj: object) -> str:
    return inert(type_name(obj))
