"""The tensors of PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress, islice
from typing import Any

from .provider import ArrayProvider, Description, DtypeNames, classes_of, loaded, view_note

GRAPH = "holds its autograd graph: detach() or item() releases it"
PORTION = 1000
# By layout, values first.
PARTS = {
    "sparse_coo": ("_values", "_indices"),
    **dict.fromkeys(("sparse_csr", "sparse_bsr"), ("values", "crow_indices", "col_indices")),
    **dict.fromkeys(("sparse_csc", "sparse_bsc"), ("values", "ccol_indices", "row_indices")),
}
# Functional and opaque tensors have no storage, sparse ones none of their own.
NO_STORAGE = (RuntimeError, NotImplementedError, AttributeError)


class TorchArrays(ArrayProvider):
    """Tensors by the storage that they hold; an autograd graph is noted, since it holds more."""

    NAME = "PyTorch"

    def arrays(self) -> tuple[type, ...]:
        return _tensor_classes()

    def blocks(self) -> tuple[type, ...]:
        return _storage_classes()

    def secondary_holders(self) -> tuple[type, ...]:
        """An optimizer has every parameter as a key, nearer than the model that it belongs to."""
        return classes_of(loaded("torch.optim.optimizer"), "Optimizer")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        read = _TensorReader(covered)
        return _safely(found, read.tensors, read.parts)

    def describe_blocks(self, found: Iterable[Any], addresses: set[int]) -> Iterator[Description | None]:
        return _safely(found, lambda portion: _of_storages(portion, addresses), lambda _: None)

    def gradients(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each leaf tensor with its gradient: PyTorch holds it where Python cannot see it."""
        kind: Any = _tensor_classes()[0]
        tensors = _tensors(found)
        with loaded("torch")._C.DisableTorchFunction():
            for each in compress(tensors, map(kind.requires_grad.__get__, tensors)):
                gradient = kind.grad.__get__(each) if kind.is_leaf.__get__(each) else None
                if gradient is not None:
                    yield each, gradient

    def bases(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each view with the tensor that it is a view of: PyTorch holds that in the same way."""
        kind: Any = _tensor_classes()[0]
        tensors = _tensors(found)
        with loaded("torch")._C.DisableTorchFunction():
            for each, base in zip(tensors, map(kind._base.__get__, tensors)):
                if base is not None:
                    yield each, base


def _tensor_classes() -> tuple[type, ...]:
    cuda, torch = loaded("torch.cuda"), loaded("torch")
    started = torch is not None and cuda is not None and cuda.is_initialized()
    return classes_of(torch._C, "TensorBase", "_TensorBase")[:1] if started else ()


def _storage_classes() -> tuple[type, ...]:
    return classes_of(loaded("torch"), "UntypedStorage") if _tensor_classes() else ()


def _tensors(found: Iterable[Any]) -> list[Any]:
    """Those that are no storages."""
    everything, storages = list(found), _storage_classes()
    wanted = {each for each in set(map(type, everything)) if not issubclass(each, storages)}
    return list(compress(everything, map(wanted.__contains__, map(type, everything))))


def _safely(
    found: Iterable[Any],
    describe_all: Callable[[list[Any]], Iterator[Description | None]],
    otherwise: Callable[[Any], Description | None],
) -> Iterator[Description | None]:
    """Many at once, in loops that run in C; one by one where one of them is not like the others."""
    waiting = iter(found)
    # Subclasses and modes, torch.set_default_device among them, may answer even for an attribute.
    with loaded("torch")._C.DisableTorchFunction():
        while portion := list(islice(waiting, PORTION)):
            try:
                described = list(describe_all(portion))
            except NO_STORAGE:
                described = [one for each in portion for one in _one(each, describe_all, otherwise)]
            yield from described


def _one(
    tensor: Any,
    describe_all: Callable[[list[Any]], Iterator[Description | None]],
    otherwise: Callable[[Any], Description | None],
) -> list[Description | None]:
    with suppress(*NO_STORAGE):
        return list(describe_all([tensor]))
    with suppress(*NO_STORAGE):
        return [otherwise(tensor)]
    return [None]


class _TensorReader:
    """Tensors share few types and shapes: each is formatted once."""

    def __init__(self, covered: set[int]) -> None:
        self._covered = covered
        self._kind: Any = _tensor_classes()[0]
        self._names = DtypeNames()
        self._shapes = _PlainShapes()

    def parts(self, tensor: Any) -> Description | None:
        """A sparse tensor has its memory in others, a nested one has no one shape."""
        kind = self._kind
        layout = str(kind.layout.__get__(tensor)).removeprefix("torch.")
        if not kind.is_cuda.__get__(tensor) or not (layout in PARTS or kind.is_nested.__get__(tensor)):
            return None
        # Its parts are asked for by operators, for which a mode of the program's would answer.
        with loaded("torch")._C._DisableTorchDispatch():
            parts = [getattr(kind, name)(tensor) for name in PARTS.get(layout, ())] or [tensor]
        # Their storages are not read: once read, they would be reported as memory without an array.
        return Description(
            nbytes=sum(kind.numel(each) * kind.element_size(each) for each in parts),
            device=kind.get_device(tensor),
            pointer=kind.data_ptr(parts[0]),
            dtype=self._names[kind.dtype.__get__(tensor)],
            shape=tuple(kind.shape.__get__(tensor)) if layout in PARTS else (),
            note=f"{layout}: its values and their indices" if layout in PARTS else "nested",
        )

    def tensors(self, tensors: list[Any]) -> Iterator[Description | None]:
        kind = self._kind
        are_on_gpu = _are_on_gpu(tensors, kind)
        on_gpu = list(compress(tensors, are_on_gpu))
        storages = list(map(kind.untyped_storage, on_gpu))
        storage: Any = loaded("torch")._C.StorageBase
        columns = zip(
            map(storage.nbytes, storages),
            map(kind.get_device, on_gpu),
            map(storage.data_ptr, storages),
            map(self._names.__getitem__, map(kind.dtype.__get__, on_gpu)),
            map(self._shapes.__getitem__, map(kind.shape.__get__, on_gpu)),
            map(operator.mul, map(kind.numel, on_gpu), map(kind.element_size, on_gpu)),
        )
        described = [
            Description(kept, device, pointer, dtype, shape, view_note(own, kept) if own != kept else "")
            for kept, device, pointer, dtype, shape, own in columns
        ]
        for at in compress(range(len(described)), map(kind.requires_grad.__get__, on_gpu)):
            if not kind.is_leaf.__get__(on_gpu[at]):
                kept = described[at]
                described[at] = Description(
                    kept.nbytes, kept.device, kept.pointer, kept.dtype, kept.shape, GRAPH
                )
        self._covered.update(map(id, storages))
        return iter(described) if len(described) == len(tensors) else _spread(described, are_on_gpu)


def _are_on_gpu(tensors: list[Any], kind: Any) -> list[bool]:
    """A class with a __torch_dispatch__ may run it even to say where a tensor is: there the memory tells."""
    answering = {each for each in set(map(type, tensors)) if _answers_itself(each)}
    if not answering:
        return list(map(kind.is_cuda.__get__, tensors))
    return [
        _has_memory(each, kind) if type(each) in answering else kind.is_cuda.__get__(each) for each in tensors
    ]


def _answers_itself(kind: type) -> bool:
    torch = loaded("torch")
    default = getattr(torch._C, "_disabled_torch_dispatch_impl", None)
    return getattr(kind, "__torch_dispatch__", default) is not default


def _has_memory(tensor: Any, kind: Any) -> bool:
    """Fake tensors, and wrappers around others, say that they are on a GPU and have nothing there."""
    try:
        storage = kind.untyped_storage(tensor)
        return bool(storage.device.type == "cuda" and storage.data_ptr())
    except NO_STORAGE:
        return False


def _spread(described: Iterable[Description | None], are_on_gpu: list[bool]) -> Iterator[Description | None]:
    """One for each tensor, None where it is not on a GPU."""
    waiting = iter(described)
    return (next(waiting) if is_on_gpu else None for is_on_gpu in are_on_gpu)


def _of_storages(storages: list[Any], addresses: set[int]) -> Iterator[Description | None]:
    storage: Any = loaded("torch")._C.StorageBase
    devices = list(map(storage.device.__get__, storages))
    gpus = {each for each in set(devices) if each.type == "cuda"}
    are_on_gpu = list(map(gpus.__contains__, devices))
    on_gpu = list(compress(storages, are_on_gpu))
    described = [
        None if pointer in addresses else Description(each.nbytes(), each.device.index, pointer, "storage")
        for each, pointer in zip(on_gpu, map(storage.data_ptr, on_gpu))
    ]
    return _spread(described, are_on_gpu)


class _PlainShapes(dict[object, tuple[int, ...]]):
    """A tuple for each shape: PyTorch's own are of a class of its."""

    def __missing__(self, shape: Any) -> tuple[int, ...]:
        plain = self[shape] = tuple(shape)
        return plain
