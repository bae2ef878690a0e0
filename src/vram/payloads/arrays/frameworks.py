"""The array providers of all frameworks: which classes are arrays on a GPU, and how large each array is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import compress, islice
from math import prod
from typing import Any

from ..trim.framework import loaded
from .gradients import Gradient, tensor_layout
from .heap.introspection import attributes, defines, is_a, read_in_c
from .provider import (
    ArrayProvider,
    Description,
    DtypeNames,
    HiddenArray,
    classes_of,
    device_of,
    extent,
    is_device_memory,
    view_note,
)

_get = object.__getattribute__

# ---- PyTorch ----

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
# What is read while it is being freed may be anything.
BEYOND_MEMORY = 1 << 46


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

    def gradients(self, found: Iterable[Any]) -> Iterator[tuple[Any, HiddenArray]]:
        """Each tensor with its gradient: PyTorch holds it where Python cannot see it."""
        kind: Any = _tensor_classes()[0]
        tensors, names = _tensors(found), DtypeNames()
        with loaded("torch")._C.DisableTorchFunction():
            training = list(compress(tensors, map(kind.requires_grad.__get__, tensors)))
            layout = tensor_layout(loaded("torch")) if training else None
            read = layout.read(list(map(kind._cdata.__get__, training))) if layout else ()
            for each, gradient in zip(training, read):
                with suppress(*NO_STORAGE):
                    described = None if gradient is None else _of_gradient(each, gradient, kind, names)
                    if gradient is not None and described is not None:
                        yield each, HiddenArray(gradient.key, described)

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
        return iter(described) if len(described) == len(tensors) else _align(described, are_on_gpu)


def _of_gradient(tensor: Any, gradient: Gradient, kind: Any, names: DtypeNames) -> Description | None:
    """Described as its *tensor*, whose shape it has. Only a sparse one has not, and no storage either."""
    (is_on_gpu,) = _are_on_gpu([tensor], kind)
    own = kind.numel(tensor) * kind.element_size(tensor)
    if not is_on_gpu or not own <= gradient.nbytes < BEYOND_MEMORY:
        return None
    return Description(
        nbytes=gradient.nbytes,
        device=kind.get_device(tensor),
        pointer=gradient.pointer,
        dtype=names[kind.dtype.__get__(tensor)],
        shape=tuple(kind.shape.__get__(tensor)),
        note=view_note(own, gradient.nbytes) if own != gradient.nbytes else "",
    )


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


def _align(described: Iterable[Description | None], are_on_gpu: list[bool]) -> Iterator[Description | None]:
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
    return _align(described, are_on_gpu)


class _PlainShapes(dict[object, tuple[int, ...]]):
    """A tuple for each shape: PyTorch's own are of a class of its."""

    def __missing__(self, shape: Any) -> tuple[int, ...]:
        plain = self[shape] = tuple(shape)
        return plain


# ---- other frameworks ----


class CupyArrays(ArrayProvider):
    """Arrays by the memory that they point into, and memory that no array points into."""

    NAME = "CuPy"
    BLOCKS = ("cupy.cuda.memory", "MemoryPointer")

    def arrays(self) -> tuple[type, ...]:
        base = classes_of(loaded("cupy._core.core"), "_ndarray_base")
        return base or classes_of(loaded("cupy"), "ndarray")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        names = DtypeNames()
        array: Any = self.arrays()[0]
        for each in found:
            data = array.data.__get__(each)
            if data is None:  # it is only being made: that is when the GPU runs out of memory
                yield None
                continue
            own = array.nbytes.__get__(each)
            yield _of_cupy(data, names[array.dtype.__get__(each)], tuple(array.shape.__get__(each)), own)

    def describe_blocks(self, found: Iterable[Any], addresses: set[int]) -> Iterator[Description | None]:
        return (_of_cupy(each, "memory", (), None) for each in found)


def _of_cupy(data: Any, dtype: str, shape: tuple[int, ...], own: int | None) -> Description | None:
    memory = data.mem
    if not memory.size:
        return None
    note = "" if own is None else view_note(own, memory.size)
    return Description(memory.size, int(memory.device_id), int(memory.ptr), dtype, shape, note)


class JaxArrays(ArrayProvider):
    """Arrays on the GPUs of this process. JAX's pool is larger than they are, and never shrinks."""

    NAME = "JAX"
    ARRAYS = ("jax._src.array", "ArrayImpl")
    # Arrays may lie in host memory and still belong to a GPU: offloaded activations do.
    ON_HOST = ("pinned_host", "unpinned_host")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        for each in found:
            try:
                yield None if each.is_deleted() else self._of_array(each)
            except (RuntimeError, NotImplementedError, AttributeError):
                yield None  # donated meanwhile, or not addressable from this process

    def _of_array(self, array: Any) -> Description | None:
        devices = array.sharding.addressable_devices
        local = [device for device in devices if device.platform in ("gpu", "cuda")]
        if not local or getattr(array.sharding, "memory_kind", None) in self.ON_HOST:
            return None
        # Shards lie in several places: such an array has no single address.
        pointer = array.unsafe_buffer_pointer() if len(local) == 1 else id(array)
        # An array whose computation failed exists in full size, with an address that is no device's.
        if len(local) == 1 and not is_device_memory(pointer):
            return None
        shard = array.sharding.shard_shape(array.shape)
        return Description(
            nbytes=prod(shard) * array.dtype.itemsize * len(local),
            device=getattr(local[0], "local_hardware_id", None),
            pointer=pointer,
            dtype=str(array.dtype),
            shape=tuple(array.shape),
            note=f"on {len(local)} GPUs" if len(local) > 1 else "",
        )


class NumbaArrays(ArrayProvider):
    """Device arrays by the allocation that they hold, and allocations that no array holds."""

    NAME = "Numba"
    DRIVER = "numba.cuda.cudadrv.driver"
    ARRAYS = ("numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase", "DeviceRecord")
    BLOCKS = (DRIVER, "OwnedPointer", "AutoFreePointer")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        return self._described(found, _NumbaReader().array)

    def describe_blocks(self, found: Iterable[Any], addresses: set[int]) -> Iterator[Description | None]:
        return self._described(found, _NumbaReader().memory)

    def _described(
        self, found: Iterable[Any], read: Callable[[Any], Description | None]
    ) -> Iterator[Description | None]:
        for each in found:
            try:
                yield read(each)
            except (ReferenceError, AttributeError):
                yield None  # its context is gone, and the memory with it


class _NumbaReader:
    """Hundreds of thousands of arrays share a few allocations and a few types: each is read once."""

    FIELDS = ("gpu_data", "alloc_size", "dtype", "shape")

    def __init__(self) -> None:
        self._names = DtypeNames()
        self._allocations: dict[int, tuple[int, int, int]] = {}
        self._plain: dict[type, bool] = {}
        # Host memory that a GPU reads in place.
        self._on_host = classes_of(loaded(NumbaArrays.DRIVER), "MappedMemory", "MappedOwnedPointer")

    def array(self, array: Any) -> Description | None:
        data, nbytes, dtype, shape = self._fields(array)
        if data is None or is_a(data, *self._on_host):
            return None
        size, device, address = self._allocation(getattr(data, "_mem", data))
        note = "" if nbytes is None else view_note(nbytes, size)
        return Description(size, device, address, self._names[dtype], shape, note)

    def _fields(self, array: Any) -> tuple[Any, ...]:
        kind = type(array)
        if kind not in self._plain:
            self._plain[kind] = not defines(kind, *self.FIELDS)
        if self._plain[kind]:
            return tuple([_get(array, name) for name in self.FIELDS])
        # A subclass overrides one of the names: read the instance dict directly. Managed arrays are also
        # NumPy arrays, which know dtype and shape in C, but not the size of the allocation.
        own = attributes(array) or {}
        return tuple([own[name] if name in own else read_in_c(array, name) for name in self.FIELDS])

    def memory(self, block: Any) -> Description | None:
        if is_a(block, *self._on_host):
            return None
        memory = getattr(block, "_mem", block)
        # What nothing refers to any more waits to be freed: the framework's own figures count it.
        return Description(*self._allocation(memory), "memory") if memory.refct else None

    def _allocation(self, memory: Any) -> tuple[int, int, int]:
        """Size, device and address."""
        known = self._allocations.get(id(memory))
        if known is None:
            pointer = memory.device_pointer  # older versions: a ctypes pointer, newer ones: a number
            address = int(getattr(pointer, "value", pointer) or 0)
            known = memory.size, memory.context.device.id, address
            self._allocations[id(memory)] = known
        return known


class PyCudaArrays(ArrayProvider):
    """GPU arrays, and allocations that the program holds without an array."""

    NAME = "PyCUDA"
    ARRAYS = ("pycuda.gpuarray", "GPUArray")
    BLOCKS = ("pycuda._driver", "DeviceAllocation", "PooledDeviceAllocation")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        for each in found:
            own: dict[str, Any] = attributes(each) or {}
            data = own.get("gpudata")
            dtype, shape = str(own.get("dtype", "")), own.get("shape") or ()
            yield None if data is None else _of_pycuda(data, dtype, shape)

    def describe_blocks(self, found: Iterable[Any], addresses: set[int]) -> Iterator[Description | None]:
        return (_of_pycuda(each, "memory", ()) for each in found)


def _of_pycuda(block: Any, dtype: str, shape: tuple[int, ...]) -> Description | None:
    try:
        address = int(block)
    except Exception:  # freed: PyCUDA raises an error class of its own
        return None
    base, nbytes = extent(address)  # PyCUDA does not keep the size
    return Description(nbytes, device_of(address), base, dtype, shape) if nbytes else None


class CudaCoreArrays(ArrayProvider):
    """Buffers of cuda.core, wherever their memory comes from."""

    NAME = "cuda.core"

    def arrays(self) -> tuple[type, ...]:
        return classes_of(loaded("cuda.core") or loaded("cuda.core.experimental"), "Buffer")

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        kind: Any = self.arrays()[0]
        for each in found:
            address, size = int(kind.handle.__get__(each) or 0), kind.size.__get__(each)
            on_device = address and size and kind.is_device_accessible.__get__(each)
            device = kind.device_id.__get__(each) if on_device else None
            yield Description(size, device, address, "bytes", (size,)) if on_device else None


class BufferArrays(ArrayProvider):
    """vram's own buffers that hold memory of a GPU."""

    NAME = "vram.Buffer"
    ON_HOST = ("pinned", "zero-copy")

    def arrays(self) -> tuple[type, ...]:
        """Empty as long as no buffer can have memory, which is known without a search."""
        living = getattr(loaded("vram.guard.allocation"), "living", ())
        has_borrowed = getattr(loaded("vram.guard.borrowed"), "has_borrowed", (False,))[0]
        return classes_of(loaded("vram.guard.buffer"), "Buffer") if living or has_borrowed else ()

    def describe(self, found: Iterable[Any], covered: set[int]) -> Iterator[Description | None]:
        for each in found:
            memory = getattr(each, "_memory", None)
            if memory is None or memory.is_closed or memory.kind in self.ON_HOST or _is_lost(memory):
                yield None
            else:
                yield Description(memory.nbytes, memory.device, memory.pointer, memory.kind, each.shape)


def _is_lost(memory: Any) -> bool:
    """An owner asks the driver whether its context was reset; a borrower leaves that to its owner."""
    return memory.kind != "borrowed" and not memory.is_valid_now


# A buffer may be borrowed from any of the others: the provider that owns the memory comes first.
PROVIDERS: tuple[ArrayProvider, ...] = (
    TorchArrays(),
    CupyArrays(),
    JaxArrays(),
    NumbaArrays(),
    PyCudaArrays(),
    CudaCoreArrays(),
    BufferArrays(),
)


def may_have_arrays() -> bool:
    """Whether any loaded framework can have arrays; if not, reading every object would be in vain."""
    return any(provider.arrays() or provider.blocks() for provider in PROVIDERS)


def secondary_holders() -> tuple[type, ...]:
    """ExceptionHooks whose instances refer to arrays that belong to others, as optimizers do."""
    return tuple(kind for provider in PROVIDERS for kind in provider.secondary_holders())
