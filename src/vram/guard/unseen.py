"""Arrays that no Python object refers to, because their framework itself does: who keeps those.

A gradient belongs to its parameter, and what a view shows to the view. What a model's forward pass
saved belongs to an autograd graph, and that to every tensor that came out of it, but a graph cannot be
looked into without running the program's own hooks: such a keeper is likely, and called so.
"""

from __future__ import annotations

from collections.abc import Sequence

from vram.guard.frameworks.torch import GRAPH
from vram.guard.heap.chains import NATIVE
from vram.guard.heap.trails import Holder, Trails
from vram.guard.inventory import Found, kept_unseen

# The ``id`` of the array that keeps another one, and what it calls that.
_Owner = tuple[int, str]


def relatives(chosen: Sequence[Found], found: Sequence[Found]) -> list[Found]:
    """Those of *found*, beyond the *chosen*, that may keep one of the chosen unseen."""
    wanted = {id(each.array) for each in chosen}
    owners = _owners(found)
    waiting, involved = list(wanted), {id(each.array) for each in _with_graphs(found)}
    while waiting:
        above = {owner for owner, _ in owners.get(waiting.pop(), ())} - involved
        involved |= above
        waiting += above
    involved -= wanted
    return [each for each in found if id(each.array) in involved]


def name_keepers(found: Sequence[Found], trails: Trails) -> None:
    """Tell who keeps those of *found* that no Python object refers to, as far as that is known."""
    unseen = {key for key, told in trails.told.items() if told == NATIVE}
    if not unseen:
        return
    owners = _owners(found)
    _blame_graphs(found, unseen.difference(owners), trails)
    for key in unseen.intersection(owners):
        _resolve(key, owners, trails, frozenset((key,)))


def _blame_graphs(found: Sequence[Found], unseen: set[int], trails: Trails) -> None:
    graphs = [id(each.array) for each in _with_graphs(found) if id(each.array) not in trails.told]
    if not graphs:
        return
    saved = _of_graphs(trails.holder(graphs[0]), len(graphs))
    theirs = unseen.intersection(id(each.array) for each in found if each.leaf.NAME == "PyTorch")
    trails.told.update(dict.fromkeys(theirs, saved))


def _resolve(key: int, owners: dict[int, list[_Owner]], trails: Trails, passed: frozenset[int]) -> None:
    """Lead the way to *key* on from an owner that has a name; else what is told of an owner holds for it."""
    for owner, _ in owners[key]:
        if owner in owners and owner not in passed and trails.told.get(owner) == NATIVE:
            _resolve(owner, owners, trails, passed | {owner})
    named = (each for each in owners[key] if each[0] not in trails.told and each[0] in trails.links)
    owner, link = next(named, owners[key][0])
    if owner in trails.told or owner not in trails.links:
        trails.told[key] = trails.holder(owner)
    elif trails.told.pop(key, None) is not None:
        trails.up[key], trails.links[key] = owner, link


def _of_graphs(first: Holder, count: int) -> Holder:
    others = f" or of {count - 1} more tensors" if count > 2 else " or of one more tensor" * (count - 1)
    return Holder(f"no Python object: likely the autograd graph of {first.text}{others}", "native")


def _with_graphs(found: Sequence[Found]) -> list[Found]:
    return [each for each in found if each.description.note == GRAPH]


def _owners(found: Sequence[Found]) -> dict[int, list[_Owner]]:
    """Of each array that is kept by another one, where Python cannot see it: by which, and as what."""
    owners: dict[int, list[_Owner]] = {}
    for leaf in {id(each.leaf): each.leaf for each in found}.values():
        for owner, link, kept in kept_unseen(leaf, [each.array for each in found if each.leaf is leaf]):
            owners.setdefault(id(kept), []).append((id(owner), link))
    return owners
