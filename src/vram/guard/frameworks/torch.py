"""PyTorch: tensors by the storage that they keep; an autograd graph is noted, since it keeps more."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, islice, repeat
from typing import Any

from msgspec.structs import replace

from vram.guard.frameworks.array import Description, Spelled, kinds, loaded, view_note

NAME = "PyTorch"
GRAPH = "keeps its autograd graph: detach() or item() lets go of it"
PORTION = 1000
# Fake, sparse or functional tensors have no storage.
NOTHING_BEHIND = (RuntimeError, NotImplementedError, AttributeError)


def arrays() -> tuple[type, ...]:
    cuda, torch = loaded("torch.cuda"), loaded("torch")
    started = torch is not None and cuda is not None and cuda.is_initialized()
    return kinds(torch._C, "TensorBase", "_TensorBase")[:1] if started else ()


def blocks() -> tuple[type, ...]:
    return kinds(loaded("torch"), "UntypedStorage") if arrays() else ()


def bystanders() -> tuple[type, ...]:
    """An optimizer has every parameter as a key, nearer than the model that it belongs to."""
    return kinds(loaded("torch.optim.optimizer"), "Optimizer")


def describe(found: Iterable[Any]) -> Iterator[Description | None]:
    kind, names, shapes = arrays()[0], Spelled(), _Plain()
    yield from _safely(found, lambda portion: _of_tensors(portion, kind, names, shapes))


def describe_blocks(found: Iterable[Any], told: set[int]) -> Iterator[Description | None]:
    yield from _safely(found, lambda portion: _of_storages(portion, told))


def gradients(found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each leaf tensor's gradient with its tensor: PyTorch holds it where Python cannot see it."""
    kind: Any = arrays()[0]
    storages = blocks()
    everything = list(found)
    wanted = {each for each in set(map(type, everything)) if not issubclass(each, storages)}
    tensors = list(compress(everything, map(wanted.__contains__, map(type, everything))))
    with loaded("torch")._C.DisableTorchFunctionSubclass():
        for each in compress(tensors, map(kind.requires_grad.__get__, tensors)):
            gradient = kind.grad.__get__(each) if kind.is_leaf.__get__(each) else None
            if gradient is not None:
                yield gradient, each


def _safely(
    found: Iterable[Any], describe_all: Callable[[list[Any]], Iterator[Description | None]]
) -> Iterator[Description | None]:
    """Many at once, in loops that run in C; one by one where one of them has nothing behind it."""
    waiting = iter(found)
    # A subclass may answer even for an attribute through its own __torch_function__.
    with loaded("torch")._C.DisableTorchFunctionSubclass():
        while portion := list(islice(waiting, PORTION)):
            try:
                described = list(describe_all(portion))
            except NOTHING_BEHIND:
                described = [one for each in portion for one in _one(each, describe_all)]
            yield from described


def _one(
    tensor: Any, describe_all: Callable[[list[Any]], Iterator[Description | None]]
) -> list[Description | None]:
    try:
        return list(describe_all([tensor]))
    except NOTHING_BEHIND:
        return [None]


def _of_tensors(
    tensors: list[Any], kind: Any, names: Spelled, shapes: _Plain
) -> Iterator[Description | None]:
    are_on_gpu = list(map(kind.is_cuda.__get__, tensors))
    on_gpu = list(compress(tensors, are_on_gpu))
    storages = list(map(kind.untyped_storage, on_gpu))
    storage: Any = loaded("torch")._C.StorageBase
    columns = zip(
        map(storage.nbytes, storages),
        map(kind.get_device, on_gpu),
        map(storage.data_ptr, storages),
        map(names.__getitem__, map(kind.dtype.__get__, on_gpu)),
        map(shapes.__getitem__, map(kind.shape.__get__, on_gpu)),
        map(operator.mul, map(kind.numel, on_gpu), map(kind.element_size, on_gpu)),
        strict=True,
    )
    told = [
        Description(kept, device, pointer, dtype, shape, view_note(own, kept) if own != kept else "")
        for kept, device, pointer, dtype, shape, own in columns
    ]
    for at in compress(range(len(told)), map(kind.requires_grad.__get__, on_gpu)):
        if not kind.is_leaf.__get__(on_gpu[at]):
            told[at] = replace(told[at], note=GRAPH)
    return iter(told) if len(told) == len(tensors) else _spread(told, are_on_gpu)


def _spread(told: Iterable[Description], are_on_gpu: list[bool]) -> Iterator[Description | None]:
    """One for each tensor, None where it is not on a GPU."""
    waiting = iter(told)
    return (next(waiting) if is_on_gpu else None for is_on_gpu in are_on_gpu)


def _of_storages(storages: list[Any], told: set[int]) -> Iterator[Description | None]:
    storage: Any = loaded("torch")._C.StorageBase
    pointers = list(map(storage.data_ptr, storages))
    if told.issuperset(pointers):
        yield from repeat(None, len(storages))
        return
    for each, pointer in zip(storages, pointers, strict=True):
        if pointer in told or each.device.type != "cuda":
            yield None
        else:
            yield Description(each.nbytes(), each.device.index, pointer, "storage")


class _Plain(dict[Any, tuple[int, ...]]):
    """A tuple for each shape: PyTorch's own are of a class of its."""

    def __missing__(self, shape: Any) -> tuple[int, ...]:
        plain = self[shape] = tuple(shape)
        return plain
