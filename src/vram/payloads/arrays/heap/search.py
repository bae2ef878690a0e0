"""The shortest reference path to objects, from a name that a user knows; and all holders of one object.

Works on a snapshot of the heap and returns text alone. Every object that was held on the way is released
before it returns.
"""

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
from .references import PathText, Role, append_link, children, is_plain
from .roots import Roots
from .walk import Walk, first_parents, is_hidden_from_collector, survivors

if TYPE_CHECKING:
    from .references import Link

# ---- reference paths ----


class ObjectHolder(Struct, frozen=True, gc=False):
    """One way in which an object is held, as text.

    ``kind`` is what holds it in the end: cell, output, module, frame, exception, thread, closure,
    generator; cycle (only itself: the collector frees it), native (nothing that Python can see), gone
    (freed during the search) or unknown (the search ran out of time).
    """

    text: str
    kind: str

    def __str__(self) -> str:
        return self.text


UNKNOWN = ObjectHolder("not found in the time given", "unknown")


class ReferencePaths:
    """The path from a name to each object, by the object's former ``id``. Holds no object.

    ``parent`` and ``links`` are the path; ``holders`` are of objects that no path leads to.
    """

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.links: dict[int, Link] = {}
        self.holders: dict[int, ObjectHolder] = {}
        self.was_cut = False
        self._texts: dict[int, PathText] = {}

    def holder(self, key: int) -> ObjectHolder:
        found = self.holders.get(key)
        if found is not None:
            return found
        if key not in self.links:
            return UNKNOWN
        path = self.path(key)
        return ObjectHolder(path.text(), path.kind)

    def path(self, key: int) -> PathText:
        """The path to *key*. Those of the objects above it are stored, since many objects share them."""
        steps, at = [], key
        while at not in self._texts and type(self.links[at]) is not PathText:
            steps.append(at)
            at = self.parent[at]
        path = self._texts.get(at) or self.links[at]
        assert isinstance(path, PathText)
        for step in reversed(steps):
            path = append_link(path, self.links[step])
            if step != key:
                self._texts[step] = path
        return path


# ---- links of many objects at once ----
#
# A hundred thousand objects are often in as many instances of one class. Those are named together: the
# attribute or slot that one of them uses is read from all, by calls that loop in C.

FEW = 4
SLICE = 50_000
_get = object.__getattribute__


class PathBuilder:
    """Fills :attr:`paths`; parents must be added before their children."""

    def __init__(self, roots: Roots) -> None:
        self.paths = ReferencePaths()
        self._roots = roots
        self._roles: dict[int, Role] = {}

    def add(self, parents_of: dict[int, object]) -> None:
        """Name objects, given by their ``id`` with the parent of each."""
        parents = list(map(id, parents_of.values()))
        self.paths.parent.update(zip(parents_of, parents))
        distinct = len(set(parents))
        if distinct == 1:
            self._name_children(next(iter(parents_of.values())), set(parents_of))
        elif distinct == len(parents_of) and len(kinds := set(map(type, parents_of.values()))) == 1:
            self._name_alike(kinds.pop(), parents_of)
        else:
            self._name_mixed(parents_of, Counter(parents))

    def _name_mixed(self, parents_of: dict[int, object], count_of: Counter[int]) -> None:
        several: dict[int, tuple[object, set[int]]] = {}
        alike: dict[type, dict[int, object]] = {}
        for key, parent in parents_of.items():
            if count_of[id(parent)] > 1:
                several.setdefault(id(parent), (parent, set()))[1].add(key)
            else:
                alike.setdefault(type(parent), {})[key] = parent
        for parent, keys in several.values():
            self._name_children(parent, keys)
        for kind, pairs in alike.items():
            self._name_alike(kind, pairs)

    def path_through(self, parent: object, child: int) -> PathText | None:
        """The path to *child* through *parent*; None if no path to *parent* is known."""
        [(_, link, _role)] = children(parent, self._roles.get(id(parent)), {child}, self._roots)
        if type(link) is PathText:
            return link
        return append_link(self.paths.path(id(parent)), link) if id(parent) in self.paths.links else None

    def release(self) -> None:
        self._roles.clear()

    def _name_children(self, parent: object, keys: set[int]) -> None:
        links, roles = self.paths.links, self._roles
        if len(keys) > FEW and type(parent) is list:
            keys = self._positions(parent, keys)
            if not keys:
                return
        for key, link, role in children(parent, roles.get(id(parent)), keys, self._roots):
            links[key] = link
            if role is not None:
                roles[key] = role

    def _positions(self, parent: list[object], keys: set[int]) -> set[int]:
        """Name the members of a list; returns those that another thread has removed meanwhile."""
        position_of: dict[int, int] = {}
        # From the end, so that of equal members the first position wins.
        for start in range((len(parent) - 1) // SLICE * SLICE, -1, -SLICE):
            part = parent[start : start + SLICE]
            position_of.update(zip(map(id, reversed(part)), range(start + len(part) - 1, -1, -1)))
        there = keys.intersection(position_of)
        self.paths.links.update(zip(there, map(position_of.__getitem__, there)))
        return keys - there

    def _name_alike(self, kind: type, pairs: dict[int, object]) -> None:
        """Name objects that are the only wanted child of their parent each; the parents are of one *kind*."""
        left = pairs
        if len(pairs) > FEW and is_plain(kind):
            first = next(iter(pairs))
            self._name_children(pairs[first], {first})
            left = self._name_by_attribute(kind, pairs)
        for key, parent in left.items():
            self._name_children(parent, {key})

    def _name_by_attribute(self, kind: type, pairs: dict[int, object]) -> dict[int, object]:
        """Name those that are in the same attribute or slot of their parents; returns the others."""
        for name in self._roots.attribute_names[kind]:
            pairs = self._name_if_equal(f".{inert(name)}", map(_get, pairs.values(), repeat(name)), pairs)
        for name, member in members(kind):
            pairs = self._name_if_equal(f".{inert(name)}", map(member.__get__, pairs.values()), pairs)
        return pairs

    def _name_if_equal(
        self, link: str, values: Iterator[object], pairs: dict[int, object]
    ) -> dict[int, object]:
        try:
            is_it = list(map(eq, map(id, values), pairs))
        except AttributeError:
            return pairs  # one of the parents lacks the attribute
        self.paths.links.update(zip(compress(pairs, is_it), repeat(link)))
        return {} if all(is_it) else dict(compress(pairs.items(), map(not_, is_it)))


# ---- search ----

LONGEST_CLIMB = 64
BUDGET_S = 2.0

NATIVE = ObjectHolder("no Python object: a running expression, or native code", "native")
GONE = ObjectHolder("freed during the search", "gone")


def shortest_paths(
    targets: Sequence[object],
    heap: list[object],
    budget_s: float = BUDGET_S,
    secondary: Sequence[type] = (),
    types: Iterable[type] | None = None,
) -> ReferencePaths:
    """The shortest path to each of *targets*, by its ``id``.

    *heap* is ``gc.get_objects()`` from before the search. The list is emptied: as long as it holds
    everything, reference counts say nothing. A path through an instance of a class of *secondary* is used
    only if there is no other. *types* are those in the heap, if known.
    """
    types = (set(map(type, heap)) if types is None else types) if secondary else ()
    # Objects that the collector does not track are found only by reading untracked containers, too.
    hides = not all(map(gc.is_tracked, targets))
    with _Search(set(map(id, targets)), heap, budget_s, subclasses_among(types, secondary)) as search:
        return search.found(hides=hides)


def shortest_paths_by_id(
    kind_of: dict[int, type],
    is_same: Callable[[int, object], bool],
    unheld: Iterable[type],
    budget_s: float,
    secondary: frozenset[type],
    pause: Pause,
) -> ReferencePaths:
    """As :func:`shortest_paths`, for objects given by ``id``: they are not held and may be freed at any time.

    *is_same* says whether an object still is the one that had its ``id``. Nothing of the types *unheld*
    is held for longer than one step: memory that the program frees must become free. *secondary* are the
    types of secondary holders.
    """
    with _Search(kind_of, [], budget_s, secondary, is_same, frozenset(unheld), pause) as search:
        return search.found(hides=any(map(is_hidden_from_collector, set(kind_of.values()))))


def subclasses_among(types: Iterable[type], bases: Sequence[type]) -> frozenset[type]:
    """Those of *types* that are, or derive from, one of *bases*."""
    return frozenset(kind for kind in set(types) if any(each in lineage(kind) for each in bases))


def all_holders(
    target: object, heap: list[object], budget_s: float = BUDGET_S, most: int = 20
) -> tuple[tuple[ObjectHolder, ...], bool]:
    """A holder for each object that refers to *target* directly, and whether the search ran out of time."""
    with _Search({id(target)}, heap, budget_s) as search:
        search.walk.run(all_parents=True, also_untracked=not gc.is_tracked(target))
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
        secondary: frozenset[type] = frozenset(),
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
        self.walk = Walk(self.roots.namespaces, left, budget_s, secondary, is_same, unheld, pause)
        self.builder = PathBuilder(self.roots)
        self.builder.paths.links.update(self.roots.direct)

    def __enter__(self) -> _Search:
        return self

    def __exit__(self, *raised: object) -> None:
        self._heap.clear()
        self.walk.release()
        self.builder.release()
        self.roots.release()

    def found(self, *, hides: bool) -> ReferencePaths:
        """Walk, and return the paths to all targets."""
        self.walk.run(also_untracked=hides)
        self.name(key for key in self._targets if key not in self.roots.direct)
        paths = self.builder.paths
        missing = self.walk.missing
        if missing and self._is_same is not None and not self.walk.was_cut:
            self._heap = gc.get_objects()
            if not hides:
                missing, gone = self._still_there(missing, self._is_same)
                paths.holders.update(dict.fromkeys(gone, GONE))
        if missing:
            paths.holders.update(self.without_names(missing))
        paths.was_cut = self.walk.was_cut
        return paths

    def _still_there(
        self, keys: set[int], is_same: Callable[[int, object], bool]
    ) -> tuple[set[int], set[int]]:
        there = {id(each) for each in self._heap if id(each) in keys and is_same(id(each), each)}
        return there, keys - there

    def name(self, wanted: Iterable[int]) -> None:
        """Name all that is wanted and was reached, from the start of each path on."""
        for parents_of in self.walk.parents(wanted):
            self.builder.add(parents_of)
            self._pause()

    def direct(self, target: object, most: int) -> Iterator[ObjectHolder]:
        """A holder for each object that refers to *target* directly."""
        parents = self.walk.every_parent(id(target))[:most]
        self.name(map(id, parents))
        for parent in parents:
            path = self.builder.path_through(parent, id(target))
            if path is not None:
                yield ObjectHolder(path.text(), path.kind)

    def without_names(self, missing: set[int]) -> dict[int, ObjectHolder]:
        """The holders of objects that no namespace leads to."""
        if self.walk.was_cut:
            return dict.fromkeys(missing, UNKNOWN)
        reached, own = self.walk.origin, {id(self.roots.namespaces), id(self.walk.portions)}
        apart = [each for each in self._heap if id(each) not in reached and id(each) not in own]
        alive = survivors(apart, but=self._targets, lists=2)
        index = first_parents(apart)
        return {key: self._climb(key, index, is_held=key in alive) for key in missing}

    def _climb(self, key: int, index: dict[int, object], *, is_held: bool) -> ObjectHolder:
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
        return self._path_from_top(path, key) if path else NATIVE

    def _path_from_top(self, chain: list[object], key: int) -> ObjectHolder:
        chain.reverse()
        top = chain[0]
        path = PathText("native", f"a {_type(top)} that no Python name leads to")
        role = None
        for parent, child in zip(chain, [*map(id, chain[1:]), key]):
            [(_, link, role)] = children(parent, role, {child}, self.roots)
            path = append_link(path, link)
        kind = "generator" if type(top) is GeneratorType else path.kind
        return ObjectHolder(path.text(), kind)


def _wanted(targets: Collection[int], is_same: Callable[[int, object], bool]) -> Callable[[object], bool]:
    return lambda met: id(met) in targets and is_same(id(met), met)


def _cycle(member: object, *, is_held: bool) -> ObjectHolder:
    text = f"a cycle through a {_type(member)}"
    if is_held:
        return ObjectHolder(f"{text}, and something that Python cannot see", "native")
    return ObjectHolder(f"{text}: gc.collect() frees it", "cycle")


def _type(obj: object) -> str:
    return inert(type_name(obj))
