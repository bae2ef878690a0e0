"""The array providers of all frameworks: which classes are arrays on a GPU, and how large each array is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

from .heap.introspection import attributes, defines, is_a, read_in_c
from .provider import (
    ArrayProvider,
    Description,
    DtypeNames,
    classes_of,
    device_of,
    extent,
    is_device_memory,
    loaded,
    view_note,
)
from .pytorch import TorchArrays

_get = object.__getattribute__


class CupyArrays(ArrayProvider):
    """Arrays by the memory that they point into, and memory that no array points into."""

    NAME = "CuPy"

    def arrays(self) -> tuple[type, ...]:
        base = classes_of(loaded("cupy._core.core"), "_ndarray_base")
        return base or classes_of(loaded("cupy"), "ndarray")

    def blocks(self) -> tuple[type, ...]:
        return classes_of(loaded("cupy.cuda.memory"), "MemoryPointer")

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
    # Arrays may lie in host memory and still belong to a GPU: offloaded activations do.
    ON_HOST = ("pinned_host", "unpinned_host")

    def arrays(self) -> tuple[type, ...]:
        return classes_of(loaded("jax._src.array"), "ArrayImpl")

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

    def arrays(self) -> tuple[type, ...]:
        return classes_of(loaded("numba.cuda.cudadrv.devicearray"), "DeviceNDArrayBase", "DeviceRecord")

    def blocks(self) -> tuple[type, ...]:
        return classes_of(loaded(self.DRIVER), "OwnedPointer", "AutoFreePointer")

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

    def arrays(self) -> tuple[type, ...]:
        return classes_of(loaded("pycuda.gpuarray"), "GPUArray")

    def blocks(self) -> tuple[type, ...]:
        return classes_of(loaded("pycuda._driver"), "DeviceAllocation", "PooledDeviceAllocation")

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
