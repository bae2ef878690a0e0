"""Memory that another library owns: where it is, borrowing it for a buffer, and erasing it in place."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

from vram.errors import BufferLost, UsageError, VramError
from vram.guard import dlpack
from vram.guard.allocation import BufferMemory, current_pid
from vram.guard.dlpack import ArrayLayout, contiguous_runs, from_interface
from vram.guard.driver import AllocationId, CudaDriver, driver

MAX_PITCH = 2**31 - 1


class ByteRows(NamedTuple):
    """*height* runs of *width* bytes, *pitch* bytes apart."""

    offset: int
    width: int
    height: int
    pitch: int


def erase(cuda: CudaDriver, pointer: int, device: int, layout: ArrayLayout) -> None:
    """Set the bytes of *layout* at *pointer* to zero, in few driver calls; done when it returns."""
    with cuda.within(pointer, device):
        # Work in other streams may still write: wait for it, or it would undo the erasing.
        cuda.must("cuCtxSynchronize")
        for rows in byte_rows(layout):
            cuda.must("cuMemsetD2D8_v2", pointer + rows.offset, rows.pitch, 0, rows.width, rows.height)
        cuda.must("cuCtxSynchronize")


def byte_rows(layout: ArrayLayout) -> Iterator[ByteRows]:
    """The bytes of *layout*, as few as its strides allow."""
    offset, width, steps = contiguous_runs(layout)
    height, pitch = 1, width
    if steps and width <= steps[0][1] <= MAX_PITCH:
        height, pitch = steps.pop(0)
    for index in itertools.product(*(range(extent) for extent, _ in steps)):
        moved = sum(number * stride for number, (_, stride) in zip(index, steps, strict=True))
        yield ByteRows(offset + moved, width, height, pitch)


HINT = "a tensor or array on a GPU: PyTorch, CuPy, JAX, Numba, cuda.core, vram.Buffer, …"


class ArrayView(NamedTuple):
    """The memory of an array. ``owner`` must be held while it is used; the owner's work that may still run
    is ordered before later work on ``stream``."""

    pointer: int
    device: tuple[int, int]
    layout: ArrayLayout
    owner: object
    stream: int = 0
    is_read_only: bool = False


def view_of(array: Any) -> ArrayView:
    """The memory of *array*, by whichever of the two protocols it supports."""
    array = without_gradient(array)
    interface = _interface_of(array)
    if interface is not None:
        return by_interface(array, interface)
    if hasattr(array, "__dlpack__"):
        return by_dlpack(array)
    raise UsageError(f"{_type_text(array)} exports no GPU memory", hint=HINT)


def without_gradient(array: Any) -> Any:
    """PyTorch exports a tensor that requires gradients only after detach()."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return array.detach() if tensor is not None and isinstance(array, tensor) else array


def _interface_of(array: object) -> Any:
    """None also if the property fails: PyTorch raises KeyError for 8-bit floats, which DLPack can export."""
    try:
        return getattr(array, "__cuda_array_interface__", None)
    except VramError:
        raise
    except Exception:
        return None


def by_interface(array: object, interface: Any = None) -> ArrayView:
    found = _interface_of(array) if interface is None else interface
    if not isinstance(found, dict):
        raise UsageError(f"{_type_text(array)} has no __cuda_array_interface__", hint=HINT)
    if found.get("mask") is not None:
        raise UsageError("masked arrays are not supported")
    try:
        (address, is_read_only), layout = found["data"], from_interface(found)
        pointer, stream = int(address or 0), int(found.get("stream") or 0)
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{_type_text(array)} has a broken __cuda_array_interface__: {error!r}") from error
    # The protocol does not say which device: the driver knows.
    device = dlpack.CUDA, _ordinal(pointer, layout)
    return ArrayView(pointer, device, layout, array, stream, bool(is_read_only))


def by_dlpack(array: Any) -> ArrayView:
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise UsageError(f"{_type_text(array)} does not support DLPack", hint=HINT)
    with _export_errors(array):
        kind, number = (int(word) for word in array.__dlpack_device__())
    if kind not in dlpack.ON_GPU:
        raise UsageError(f"{_type_text(array)} is not on a GPU (DLPack device type {kind})", hint=HINT)
    stream = None if kind == dlpack.CUDA_HOST else dlpack.LEGACY_STREAM
    taken = dlpack.ImportedCapsule(_capsule_of(array, stream))
    if taken.flags & dlpack.IS_COPIED:
        raise UsageError(f"{_type_text(array)} exports a copy, not its memory", hint=HINT)
    tensor, layout = taken.tensor, dlpack.layout_of(taken.tensor, taken.flags)
    pointer = (tensor.data or 0) + tensor.byte_offset
    _ordinal(pointer, layout)  # raises if the driver does not know the address
    return ArrayView(
        pointer, (kind, number), layout, taken, stream or 0, bool(taken.flags & dlpack.READ_ONLY)
    )


def _capsule_of(array: Any, stream: int | None) -> object:
    with _export_errors(array):
        try:
            return array.__dlpack__(stream=stream, max_version=dlpack.VERSION)
        except TypeError:  # a producer from before version 1
            return array.__dlpack__(stream=stream)


@contextmanager
def _export_errors(array: object) -> Iterator[None]:
    """Turn what a library raises into a UsageError: PyTorch has BufferError, ValueError and RuntimeError."""
    try:
        yield
    except VramError:
        raise
    except Exception as error:
        raise UsageError(f"{_type_text(array)} does not export its memory: {error}", hint=HINT) from error


def _ordinal(pointer: int, layout: ArrayLayout) -> int:
    """The GPU of memory that the driver knows, or DeviceError; 0 where there is no memory at all."""
    return driver().ordinal_of(pointer) if pointer and layout.nbytes else 0


def _type_text(array: object) -> str:
    return f"an object of type {type(array).__module__}.{type(array).__qualname__}"


# Whether memory was ever borrowed. A list of the borrowers would be more objects for every heap search.
has_borrowed = [False]


class Borrowed(BufferMemory):
    """Memory of another library. Its owner is held meanwhile; the memory is never freed here."""

    kind = "borrowed"

    def __init__(self, view: ArrayView) -> None:
        if not (view.pointer and view.layout.nbytes):
            raise UsageError("an array without elements has no memory to borrow")
        self.cuda, self.lock, self.pid = driver(), RLock(), current_pid[0]
        self._device = view.device[1]
        self.id = AllocationId(view.pointer)
        self.nbytes = view.layout.nbytes
        self.is_host_visible = view.device[0] in (dlpack.CUDA_HOST, dlpack.CUDA_MANAGED)
        self.is_read_only = view.is_read_only
        self.device_kind = view.device[0]
        self._layout = view.layout
        self._owner: object | None = view.owner
        self.id.number = self.cuda.allocation_number(view.pointer)
        if (
            view.stream == dlpack.LEGACY_STREAM
        ):  # this stream always exists: the next consumer can wait for it
            self.interface_stream = view.stream
        elif view.stream:
            with self.inside():
                self.cuda.must("cuStreamSynchronize", view.stream)
        has_borrowed[0] = True

    def synchronize(self) -> None:
        if self.interface_stream is not None:
            self.cuda.must("cuStreamSynchronize", self.interface_stream)

    def lost(self) -> BufferLost:
        self._forget()
        hint = "its owner freed it, or its CUDA context was destroyed; borrow from a live array"
        return BufferLost("the memory that this buffer borrowed is gone", hint=hint)

    def _forget(self) -> None:
        self.is_released = True
        self._owner = None

    def _zero(self) -> None:
        erase(self.cuda, self.pointer, self.device, self._layout)

    def release(self) -> None:
        """Release the owner."""
        self.check()
        self._forget()

    def drop(self) -> None:
        self._forget()
