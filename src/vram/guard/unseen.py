"""Arrays that no Python object refers to, because their framework itself does: who keeps those.

A gradient belongs to its parameter. What a model's forward pass saved belongs to an autograd
graph, and that to every tensor that came out of it, but a graph cannot be looked into without
running the program's own hooks: such a keeper is likely, and called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vram.guard.frameworks.torch import GRAPH
from vram.guard.heap.chains import NATIVE
from vram.guard.heap.trails import Holder, Trails
from vram.guard.inventory import Found


def relatives(chosen: Sequence[Found], found: Sequence[Found]) -> list[Found]:
    """Those of *found*, beyond the *chosen*, that may keep one of the chosen unseen."""
    wanted = {id(each.array) for each in chosen}
    parameters = {id(owner) for gradient, owner in _gradients(found) if id(gradient) in wanted}
    graphs = {id(each.array) for each in _with_graphs(found)}
    others = (parameters | graphs) - wanted
    return [each for each in found if id(each.array) in others]


def keepers(found: Sequence[Found], trails: Trails) -> dict[int, Holder]:
    """By ``id``: for arrays among *found* that no Python object refers to, the ones of which that is told."""
    named: dict[int, Holder] = {}
    if NATIVE not in trails.told.values():
        return named
    for gradient, owner in _gradients(found):
        if trails.told.get(id(gradient)) == NATIVE:
            keeper = trails.holder(id(owner))
            named[id(gradient)] = Holder(f"{keeper.text}.grad", keeper.kind)
    graphs = [id(each.array) for each in _with_graphs(found) if id(each.array) not in trails.told]
    if graphs:
        saved = _of_graphs(trails.holder(graphs[0]), len(graphs))
        unnamed = (id(each.array) for each in found if each.leaf.NAME == "PyTorch")
        named.update((key, saved) for key in unnamed if trails.told.get(key) == NATIVE and key not in named)
    return named


def _of_graphs(first: Holder, count: int) -> Holder:
    others = f" or of {count - 1} more tensors" if count > 2 else " or of one more tensor" * (count - 1)
    return Holder(f"no Python object: likely the autograd graph of {first.text}{others}", "native")


def _with_graphs(found: Sequence[Found]) -> list[Found]:
    return [each for each in found if each.description.note == GRAPH]


def _gradients(found: Sequence[Found]) -> Iterator[tuple[Any, Any]]:
    for leaf in {id(each.leaf): each.leaf for each in found}.values():
        gradients: Any = getattr(leaf, "gradients", None)
        if gradients is not None:
            yield from gradients(each.array for each in found if each.leaf is leaf)
