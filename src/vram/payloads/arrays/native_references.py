"""DOC"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .heap.search import NATIVE, Holder, Trails
from .inventory import Found, kept_unseen
from .provider import Description
from .pytorch import GRAPH

# The ``id`` of the array that keeps another one, and what it calls that.
_Owner = tuple[int, str]
Owners = dict[int, list[_Owner]]


class Seen(Protocol):
    """What must be known of an array here; :class:`Found` tells it, and so does one that nobody holds."""

    @property
    def provider(self) -> Any: ...
    @property
    def key(self) -> int: ...
    @property
    def description(self) -> Description: ...


def relatives(chosen: Sequence[Found], found: Sequence[Found]) -> list[Found]:
    """Those of *found*, beyond the *chosen*, that may keep one of the chosen unseen."""
    involved = related({id(each.array) for each in chosen}, found, owners_of(found))
    return [each for each in found if id(each.array) in involved]


def related(wanted: set[int], found: Sequence[Seen], owners: Owners) -> set[int]:
    """The keys of those that :func:`relatives` names."""
    waiting, involved = list(wanted), {each.key for each in _with_graphs(found)}
    while waiting:
        above = {owner for owner, _ in owners.get(waiting.pop(), ())} - involved
        involved |= above
        waiting += above
    return involved - wanted


def name_keepers(found: Sequence[Found], trails: Trails) -> None:
    """Tell who keeps those of *found* that no Python object refers to, as far as that is known."""
    if any(told == NATIVE for told in trails.told.values()):
        name_by_owners(found, trails, owners_of(found))


def name_by_owners(found: Sequence[Seen], trails: Trails, owners: Owners) -> None:
    """The same where *owners* are known already, since nobody holds the arrays any more."""
    unseen = {key for key, told in trails.told.items() if told == NATIVE}
    _blame_graphs(found, unseen.difference(owners), trails)
    for key in unseen.intersection(owners):
        _resolve(key, owners, trails, frozenset((key,)))


def _blame_graphs(found: Sequence[Seen], unseen: set[int], trails: Trails) -> None:
    graphs = [each.key for each in _with_graphs(found) if each.key not in trails.told]
    if not graphs:
        return
    saved = _of_graphs(trails.holder(graphs[0]), len(graphs))
    theirs = unseen.intersection(each.key for each in found if each.provider.NAME == "PyTorch")
    trails.told.update(dict.fromkeys(theirs, saved))


def _resolve(key: int, owners: Owners, trails: Trails, passed: frozenset[int]) -> None:
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


def _with_graphs(found: Sequence[Seen]) -> list[Seen]:
    return [each for each in found if each.description.note == GRAPH]


def owners_of(found: Sequence[Found]) -> Owners:
    """Of each array that is kept by another one, where Python cannot see it: by which, and as what."""
    owners: Owners = {}
    for provider in {id(each.provider): each.provider for each in found}.values():
        for owner, link, kept in kept_unseen(
            provider, [each.array for each in found if each.provider is provider]
        ):
            owners.setdefault(id(kept), []).append((id(owner), link))
    return owners
