"""Names for what a walk has found: the links on the way to each object, told one portion after another.

A hundred thousand objects often lie in as many instances of one class. Those are told together:
the attribute or slot that one of them uses is asked of all, by calls that loop in C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import compress, repeat
from operator import eq, not_

from .links import children, is_plain
from .peek import inert, members
from .role import Role
from .roots import Roots
from .trails import Trails
from .words import Words, extended

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
