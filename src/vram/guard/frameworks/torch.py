"""PyTorch: tensors by the storage that they keep; an autograd graph is noted, since it keeps more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vram.guard.frameworks.array import Description, Spelled, kinds, loaded, view_note

NAME = "PyTorch"
GRAPH = "keeps its autograd graph: detach() or item() lets go of it"


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
    native, kind, names, storages = loaded("torch")._C, arrays()[0], Spelled(), blocks()
    # A subclass may answer even for an attribute through its own __torch_function__.
    with native.DisableTorchFunctionSubclass():
        for each in found:
            try:
                yield _of_storage(each) if issubclass(type(each), storages) else _of_tensor(each, kind, names)
            except (RuntimeError, NotImplementedError, AttributeError):
                yield None  # fake, sparse or functional: there is no storage behind it


def gradients(found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each leaf tensor's gradient with its tensor: PyTorch holds it where Python cannot see it."""
    kind: Any = arrays()[0]
    storages = blocks()
    with loaded("torch")._C.DisableTorchFunctionSubclass():
        for each in found:
            if issubclass(type(each), storages) or not kind.requires_grad.__get__(each):
                continue
            gradient = kind.grad.__get__(each) if kind.is_leaf.__get__(each) else None
            if gradient is not None:
                yield gradient, each


def _of_tensor(tensor: Any, kind: Any, names: Spelled) -> Description | None:
    if not kind.is_cuda.__get__(tensor):
        return None
    storage = kind.untyped_storage(tensor)
    kept = storage.nbytes()
    own = kind.numel(tensor) * kind.element_size(tensor)
    in_graph = kind.requires_grad.__get__(tensor) and not kind.is_leaf.__get__(tensor)
    return Description(
        nbytes=kept,
        device=storage.device.index,
        pointer=storage.data_ptr(),
        dtype=names[kind.dtype.__get__(tensor)],
        shape=tuple(kind.shape.__get__(tensor)),
        note=GRAPH if in_graph else view_note(own, kept),
    )


def _of_storage(storage: Any) -> Description | None:
    if storage.device.type != "cuda":
        return None
    return Description(storage.nbytes(), storage.device.index, storage.data_ptr(), "storage")
