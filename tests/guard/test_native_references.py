"""Arrays that their framework keeps where Python cannot see it: gradients, what views show, graphs' own."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from vram.payloads.arrays.frameworks import GRAPH
from vram.payloads.arrays.heap.search import NATIVE, ObjectHolder, shortest_paths
from vram.payloads.arrays.inventory import FoundArray, hidden_gradients
from vram.payloads.arrays.native_references import name_native_holders, paths_to, possible_holders
from vram.payloads.arrays.provider import Description, HiddenArray


class Tensor:
    """As PyTorch's: what it keeps besides is no reference of Python's."""

    def __init__(self, note: str = "") -> None:
        self.note = note


class Provider:
    """A framework like PyTorch."""

    NAME = "PyTorch"

    def __init__(self, **kept: tuple[Tensor, Tensor]) -> None:
        # Kept by number, as native code does; the objects themselves are kept by the test alone.
        self._kept = {name: (id(owner), id(other)) for name, (owner, other) in kept.items()}

    def _pairs(self, name: str, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        owner, other = self._kept.get(name, (0, 0))
        there = {id(each): each for each in found}
        if owner in there:
            yield there[owner], there.get(other) or native[other]

    def gradients(self, found: Iterable[Any]) -> Iterator[tuple[Any, HiddenArray]]:
        for owner, gradient in self._pairs("grad", found):
            yield owner, HiddenArray(id(gradient), Description(1, 0, id(gradient)))

    def bases(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return self._pairs("base", found)


class Native(dict[int, Tensor]):
    """What native code holds."""


native = Native()


@pytest.fixture(autouse=True)
def nothing_native() -> Iterator[None]:
    yield
    native.clear()


def kept_natively() -> Tensor:
    tensor = Tensor()
    native[id(tensor)] = tensor
    return tensor


def found_in(provider: Any, *tensors: Tensor) -> list[FoundArray]:
    return [
        FoundArray(provider, each, Description(1, 0, id(each), note=each.note), False) for each in tensors
    ]


def holders(found: list[FoundArray], unseen: Iterable[Tensor]) -> dict[int, ObjectHolder]:
    """As live() tells them, where the walk has met all but the *unseen*."""
    paths = shortest_paths([each.array for each in found], gc.get_objects())
    for each in unseen:
        paths.holders[id(each)] = NATIVE
    name_native_holders(found, paths)
    return {id(each.array): paths.holder(id(each.array)) for each in found}


def test_a_gradient_is_named_where_its_tensors_name_ends() -> None:
    """Of a local variable the frame comes after it: ``'weight'.grad in step()``."""
    weight, gradient = Tensor(), kept_natively()
    found = found_in(Provider(grad=(weight, gradient)), weight, gradient)
    told = holders(found, [gradient])
    assert told[id(weight)].text.endswith(" in test_a_gradient_is_named_where_its_tensors_name_ends()")
    assert told[id(gradient)].text == told[id(weight)].text.replace("'weight'", "'weight'.grad")
    assert told[id(gradient)].kind == "frame"


def test_what_a_view_shows_is_kept_by_the_view() -> None:
    """Also where some other tensor has a graph, which would be the likely holder otherwise."""
    loss, view, whole = Tensor(GRAPH), Tensor(), kept_natively()
    found = found_in(Provider(base=(view, whole)), loss, whole, view)
    assert "'view'._base" in holders(found, [whole])[id(whole)].text


def test_the_gradient_of_a_tensor_without_a_name_is_kept_by_what_keeps_the_tensor() -> None:
    loss, weight, gradient = Tensor(GRAPH), kept_natively(), kept_natively()
    found = found_in(Provider(grad=(weight, gradient)), loss, weight, gradient)
    told = holders(found, [weight, gradient])
    assert told[id(gradient)] == told[id(weight)]
    assert "likely the autograd graph of" in told[id(gradient)].text


def test_the_gradient_of_a_tensor_in_a_cycle_goes_with_the_cycle() -> None:
    weight, gradient = kept_natively(), kept_natively()
    found = found_in(Provider(grad=(weight, gradient)), weight, gradient)
    paths = shortest_paths([], gc.get_objects())
    cycle = ObjectHolder("a cycle through a Model: gc.collect() frees it", "cycle")
    paths.holders.update({id(weight): cycle, id(gradient): NATIVE})
    name_native_holders(found, paths)
    assert paths.holder(id(gradient)) == cycle


def test_a_ring_of_tensors_that_keep_each_other_is_told_as_it_is() -> None:
    one, other = kept_natively(), kept_natively()
    found = found_in(Provider(grad=(one, other), base=(other, one)), one, other)
    assert set(holders(found, [one, other]).values()) == {NATIVE}


def test_the_view_of_a_view_of_a_gradient_leads_to_the_parameter() -> None:
    weight, gradient, whole = Tensor(), kept_natively(), kept_natively()
    found = found_in(Provider(grad=(weight, gradient), base=(gradient, whole)), whole, gradient, weight)
    assert "'weight'.grad._base" in holders(found, [gradient, whole])[id(whole)].text
    assert {id(each.array) for each in possible_holders(found[:1], found)} == {id(weight), id(gradient)}


def test_gradients_without_an_object_are_found_once() -> None:
    weight, gradient = Tensor(), kept_natively()
    provider: Any = Provider(grad=(weight, gradient))
    assert [each.key for each in hidden_gradients(provider, [weight])] == [id(gradient)]
    assert hidden_gradients(provider, [gradient, weight]) == []


def test_a_gradient_without_an_object_is_named_after_its_tensor() -> None:
    weight, gradient = Tensor(), kept_natively()
    provider: Any = Provider(grad=(weight, gradient))
    (hidden,) = hidden_gradients(provider, [weight])
    found = [*found_in(provider, weight), FoundArray(provider, hidden, hidden.description, False)]
    paths = paths_to(found, gc.get_objects(), ())
    of_weight, of_gradient = (paths.holder(each.key).text for each in found)
    assert of_gradient == of_weight.replace("'weight'", "'weight'.grad")
