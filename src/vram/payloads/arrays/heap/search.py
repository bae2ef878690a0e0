"""The shortest reference path to objects, from a name that a user knows; and all holders of one object.

Works on a snapshot of the heap and returns text alone. Every object that was held on the way is released
before it returns.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress, repeat
from operator import eq, not_
from types import GeneratorType
from typing import TYPE_CHECKING

from ...pace import Pause
from ...tracked_objects import tracked_objects, types_owned_elsewhere
from ..record import Struct
from .introspection import attributes, inert, members, type_name
from .references import PathText, Role, append_link, children, is_plain
from .referents import first_parents, first_parents_of, is_hidden_from_collector, survivors, unlisted_in
from .roots import Roots
from .walk import FREE_THREADED, ByLineage, Walk

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
FREED = PathText("gone", "", "of an array that was freed during the search: ")


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
        while at not in self._texts and type(self.links.get(at, FREED)) is not PathText:
            steps.append(at)
            at = self.parent[at]
        path = self._texts.get(at) or self.links.get(at, FREED)
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
        there: set[int] = set()
        # From the end, so that of equal members the first position wins.
        for start in range((len(parent) - 1) // SLICE * SLICE, -1, -SLICE):
            here = list(map(id, parent[start : start + SLICE]))
            found = list(map(keys.__contains__, here))
            members_here = list(compress(here, found))
            positions = list(compress(range(start, start + len(here)), found))
            self.paths.links.update(zip(reversed(members_here), reversed(positions)))
            there.update(members_here)
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

MAX_CLIMB = 64
BUDGET_S = 2.0

NATIVE = ObjectHolder("no Python object: a running expression, or native code", "native")
GONE = ObjectHolder("freed during the search", "gone")


def shortest_paths(
    targets: Sequence[object], heap: list[object], budget_s: float = BUDGET_S, secondary: Sequence[type] = ()
) -> ReferencePaths:
    """The shortest path to each of *targets*, by its ``id``.

    *heap* is ``tracked_objects()`` from before the search. The list is emptied: as long as it holds
    everything, reference counts say nothing. A path through an instance of a class of *secondary* is used
    only if there is no other.
    """
    # Objects that the collector does not track are found only by reading untracked containers, too.
    hides = not all(map(gc.is_tracked, targets))
    with _Search(set(map(id, targets)), heap, budget_s, secondary) as search:
        return search.found(hides=hides)


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
        self, targets: Collection[int], heap: list[object], budget_s: float, secondary: Sequence[type] = ()
    ) -> None:
        self._heap = heap
        self._targets = targets
        self.roots = Roots()
        self.walk = Walk(self.roots.namespaces, targets, budget_s, secondary)
        self.builder = PathBuilder(self.roots)

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
        self.name(self._targets)
        paths = self.builder.paths
        missing = self.walk.missing
        if missing:
            paths.holders.update(self.without_names(missing))
        paths.was_cut = self.walk.was_cut
        return paths

    def name(self, wanted: Iterable[int]) -> None:
        """Name all that is wanted and was reached, from the start of each path on."""
        for parents_of in self.walk.parents(wanted):
            self.builder.add(parents_of)

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
        apart = self._unreached(self._heap)
        tuples = self._unreached(unlisted_in(apart))
        apart += tuples
        self._heap += tuples
        del tuples  # in two lists, as all others are
        alive = survivors(apart, but=self._targets, lists=2)
        climb = _Climb(first_parents(apart), self.roots)
        return {key: climb.holder(key, is_held=key in alive) for key in missing}

    def _unreached(self, objects: list[object]) -> list[object]:
        own = {id(self.roots.namespaces), id(self.walk.portions)}
        there = set(self.walk.reached.missing(map(id, objects))) - own
        return [each for each in objects if id(each) in there]


class _Climb:
    """From an object that no name leads to up to the last one that refers to it."""

    def __init__(self, parent_of: dict[int, object], roots: Roots) -> None:
        self._parent_of, self._roots = parent_of, roots

    def holder(self, key: int, *, is_held: bool) -> ObjectHolder:
        path: list[object] = []
        seen = {key}
        at = key
        while at in self._parent_of and len(path) < MAX_CLIMB:
            parent = self._parent_of[at]
            path.append(parent)
            at = id(parent)
            if at in seen:
                owner = self._parent_of.get(at)
                # Up to Python 3.10 the attributes of every object are a dict of their own.
                is_attributes = type(parent) is dict and attributes(owner) is parent
                return _cycle(owner if is_attributes else parent, is_held=is_held)
            seen.add(at)
        return self._path_from_top(path, key) if path else NATIVE

    def _path_from_top(self, chain: list[object], key: int) -> ObjectHolder:
        chain.reverse()
        top = chain[0]
        path = PathText("native", f"a {_type(top)} that no Python name leads to")
        role = None
        for parent, child in zip(chain, [*map(id, chain[1:]), key]):
            [(_, link, role)] = children(parent, role, {child}, self._roots)
            path = append_link(path, link)
        kind = "generator" if type(top) is GeneratorType else path.kind
        return ObjectHolder(path.text(), kind)


def _cycle(member: object, *, is_held: bool) -> ObjectHolder:
    text = f"a cycle through a {_type(member)}"
    if is_held:
        return ObjectHolder(f"{text}, and something that Python cannot see", "native")
    return ObjectHolder(f"{text}: gc.collect() frees it", "cycle")


def _type(obj: object) -> str:
    return inert(type_name(obj))


# ---- search in another program ----
#
# Nothing that is searched is held: memory that the program frees must become free. Every object of the wanted
# classes is given away as soon as it is met, and known by its ``id`` from then on.

# How many objects may be listed in one call, which takes 5 to 8 ms for 100,000 of them. PyTorch alone has
# 160,000, with its compiler 280,000.
MAX_LISTED = 300_000
LISTED_AT_ONCE = 5_000
NAMELESS = ObjectHolder("no name leads to it: a running expression, native code, or a cycle", "native")


class Discovery:
    """Finds every object of the classes *kinds*, and the paths to those that matter.

    Each is given to *add*, and released. *pause* rests between two parts of the work. Objects that no name
    leads to are looked for in the list of all objects; of a program with more than MAX_LISTED, among the
    newest ones (``lists_all`` is False). ``left_out``: types of which only those are met that an object
    refers to.
    """

    def __init__(
        self,
        kinds: Sequence[type],
        add: Callable[[list[object]], None],
        budget_s: float,
        secondary: Sequence[type],
        pause: Pause,
    ) -> None:
        self.lists_all = True
        self.left_out = types_owned_elsewhere()
        self.objects = 0
        self._add, self._pause = add, pause
        self._unheld = ByLineage(kinds)
        self._are_classes = ByLineage((type,))
        self._hides = any(map(is_hidden_from_collector, kinds))
        self._through: set[int] = set()
        local: list[object] = []
        self._roots = Roots(self._unheld, local)
        self._builder = PathBuilder(self._roots)
        self._builder.paths.links.update(self._roots.direct)
        namespaces = self._roots.namespaces
        self._walk = Walk(namespaces, (), budget_s, secondary, self._unheld, self._take, pause)
        namespaces += self._walk.lead_on(local)
        local.clear()

    def __enter__(self) -> Discovery:
        return self

    def __exit__(self, *raised: object) -> None:
        self._walk.release()
        self._builder.release()
        self._roots.release()

    def run(self) -> None:
        """Give away everything that names lead to, then what else there is."""
        self._walk.run(also_untracked=self._hides)
        self.objects = self._walk.objects
        self._add_nameless()

    def paths(self, wanted: Collection[int], is_same: dict[int, Callable[[object], bool]]) -> ReferencePaths:
        """The path to each of *wanted*; those that were freed meanwhile have none.

        *is_same* says of some whether an object that has the ``id`` now still is the one that was given away.
        """
        paths = self._builder.paths
        for parents_of in self._walk.parents(self._through.union(wanted).difference(paths.links)):
            # First, because to name a child by its attribute may give an instance another __dict__.
            for key in parents_of.keys() & is_same.keys():
                if not self._is_there(parents_of[key], key, is_same[key]):
                    paths.holders[key] = GONE
                self._pause()
            self._builder.add(parents_of)
            self._pause()
        gone = [key for key in wanted if key not in paths.links and key not in paths.holders]
        paths.holders.update(dict.fromkeys(gone, GONE))
        paths.was_cut = self._walk.was_cut
        return paths

    def _is_there(self, parent: object, key: int, is_same: Callable[[object], bool]) -> bool:
        if self._walk.is_large(parent):
            return True  # not read again for this
        return any(id(each) == key and is_same(each) for each in gc.get_referents(parent))

    def _take(self, found: list[object]) -> list[object]:
        """Give *found* away; returns what they refer to and no other object has led to yet."""
        self._add(found)
        referents = self._followed(found)
        missing = set(self._walk.reached.missing(map(id, referents)))
        if not missing:
            return []
        # Named now: the array is not held, and may be gone later.
        parents_of = first_parents_of(found, missing, self._pause)
        self._builder.add(parents_of)
        self._through.update(map(id, parents_of.values()))
        return referents

    def _followed(self, objects: list[object]) -> list[object]:
        """What *objects* refer to; their classes have better names."""
        referents = list(filter(gc.is_tracked, gc.get_referents(*objects)))
        return [each for each in referents if not self._are_classes[type(each)]]

    # ---- objects that no name leads to ----

    def _add_nameless(self) -> None:
        self.lists_all = sys.getallocatedblocks() <= MAX_LISTED or (
            self.objects <= MAX_LISTED and not self._walk.was_cut
        )
        if self.lists_all:
            self._walk.complete_reached()
        apart = self._unreached(
            tracked_objects(but=self.left_out) if self.lists_all else _newest(self.left_out)
        )
        apart += self._unreached(unlisted_in(apart, self._pause, self.left_out))
        found = list(compress(apart, map(self._unheld.__getitem__, map(type, apart))))
        self._add(found)
        # A local variable of a running frame is no object's, but it has a name.
        keys = set(map(id, found)).difference(self._builder.paths.links)
        found.clear()
        if self.lists_all and not self._walk.was_cut:
            self.objects += len(apart)
            self._name_nameless(keys - self._walk.find_again(keys), apart)
        else:
            holder = UNKNOWN if self._walk.was_cut else NAMELESS
            self._builder.paths.holders.update(dict.fromkeys(keys, holder))

    def _unreached(self, heap: list[object]) -> list[object]:
        """Those of *heap*, which is emptied, that the walk did not reach."""
        own = {id(self._roots.namespaces), id(self._walk.portions)}
        apart: list[object] = []
        # Nothing in the list is freed before its part of it is gone. What the program is about to free is
        # among the newest, which come first in the list: now they are the last, and go first.
        heap.reverse()
        while heap:
            part = heap[-LISTED_AT_ONCE:]
            del heap[-LISTED_AT_ONCE:]
            there = set(self._walk.reached.missing(map(id, part))) - own
            apart += [each for each in part if id(each) in there]
            self._pause()
        return apart

    def _name_nameless(self, keys: set[int], apart: list[object]) -> None:
        if keys:
            alive = survivors(apart, keys, 1, self._pause)
            climb = _Climb(first_parents(apart, self._pause), self._roots)
            holders = {key: climb.holder(key, is_held=key in alive) for key in keys}
            self._builder.paths.holders.update(holders)


def _newest(but: frozenset[type]) -> list[object]:
    """The objects that the collector has looked at least often, as far as they are few."""
    if FREE_THREADED:
        return []
    newest, older, _ = gc.get_count()
    listed: list[object] = []
    if newest <= MAX_LISTED:
        listed += tracked_objects(0, but)
    if older * gc.get_threshold()[0] <= MAX_LISTED:
        listed += tracked_objects(1, but)
    return listed
