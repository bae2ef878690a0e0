"""Arrays that no Python object refers to, because their framework holds them: who holds those.

A gradient belongs to its parameter, and the base of a view to the view. What a model's forward pass saved
belongs to an autograd graph, which every tensor that came out of it holds. A graph cannot be read without
running the program's own hooks, so such a holder is only likely, and is called so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .frameworks import GRAPH
from .heap.search import BUDGET_S, NATIVE, ObjectHolder, ReferencePaths, shortest_paths
from .inventory import ArrayHolders, ArrayRecord, FoundArray, add_native_holders
from .provider import HiddenArray

if TYPE_CHECKING:
    DescribedArray = FoundArray | ArrayRecord


def possible_holders(chosen: Sequence[FoundArray], found: Sequence[FoundArray]) -> list[FoundArray]:
    """Those of *found*, other than the *chosen*, that may hold one of the chosen natively."""
    involved = possible_holder_keys({each.key for each in chosen}, found, array_holders(found))
    return [each for each in found if each.key in involved]


def possible_holder_keys(
    wanted: set[int], found: Sequence[DescribedArray], holders: ArrayHolders
) -> set[int]:
    """The same by ``id``."""
    waiting, involved = list(wanted), {each.key for each in _with_graphs(found)}
    while waiting:
        above = {holder for holder, _ in holders.get(waiting.pop(), ())} - involved
        involved |= above
        waiting += above
    return involved - wanted


def paths_to(
    found: Sequence[FoundArray], heap: list[object], secondary: Sequence[type], budget_s: float = BUDGET_S
) -> ReferencePaths:
    """The path to each of *found*, also through arrays that hold others; as :func:`shortest_paths`."""
    objects = [each.array for each in found if type(each.array) is not HiddenArray]
    paths = shortest_paths(objects, heap, budget_s, secondary)
    hidden = (each.key for each in found if type(each.array) is HiddenArray)
    paths.holders.update(dict.fromkeys(hidden, NATIVE))
    name_native_holders(found, paths)
    return paths


def name_native_holders(found: Sequence[FoundArray], paths: ReferencePaths) -> None:
    """Set the holders in *paths* for those of *found* that no Python object refers to, as far as known."""
    if any(held == NATIVE for held in paths.holders.values()):
        name_by_array_holders(found, paths, array_holders(found))


def name_by_array_holders(
    found: Sequence[DescribedArray], paths: ReferencePaths, holders: ArrayHolders
) -> None:
    """The same with known *holders*, for arrays that are not held any more."""
    native = {key for key, held in paths.holders.items() if held == NATIVE}
    _name_graphs(found, native.difference(holders), paths)
    for key in native.intersection(holders):
        _resolve(key, holders, paths, frozenset((key,)))


def _name_graphs(found: Sequence[DescribedArray], native: set[int], paths: ReferencePaths) -> None:
    graphs = [each.key for each in _with_graphs(found) if each.key not in paths.holders]
    if not graphs:
        return
    saved = _graph_holder(paths.holder(graphs[0]), len(graphs))
    theirs = native.intersection(each.key for each in found if each.provider.NAME == "PyTorch")
    paths.holders.update(dict.fromkeys(theirs, saved))


def _resolve(key: int, holders: ArrayHolders, paths: ReferencePaths, passed: frozenset[int]) -> None:
    """Continue the path of a holder that has a name to *key*; else *key* has the holder of its holder."""
    for holder, _ in holders[key]:
        if holder in holders and holder not in passed and paths.holders.get(holder) == NATIVE:
            _resolve(holder, holders, paths, passed | {holder})
    named = (each for each in holders[key] if each[0] not in paths.holders and each[0] in paths.links)
    holder, link = next(named, holders[key][0])
    if holder in paths.holders or holder not in paths.links:
        paths.holders[key] = paths.holder(holder)
    elif paths.holders.pop(key, None) is not None:
        paths.parent[key], paths.links[key] = holder, link


def _graph_holder(first: ObjectHolder, count: int) -> ObjectHolder:
    others = f" or of {count - 1} more tensors" if count > 2 else " or of one more tensor" * (count - 1)
    return ObjectHolder(f"no Python object: likely the autograd graph of {first.text}{others}", "native")


def _with_graphs(found: Sequence[DescribedArray]) -> list[DescribedArray]:
    return [each for each in found if each.description.note == GRAPH]


def array_holders(found: Sequence[FoundArray]) -> ArrayHolders:
    """For each array that another one holds natively: which ones hold it, and as which attribute."""
    holders: ArrayHolders = {}
    for provider in {id(each.provider): each.provider for each in found}.values():
        theirs = [each.array for each in found if each.provider is provider]
        add_native_holders(provider, [each for each in theirs if type(each) is not HiddenArray], holders)
    return holders
