"""The kinds of memory that a buffer can own: how each is allocated, erased and freed."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint64
from typing import Any, NamedTuple

from vram.errors import OutOfMemory, UsageError
from vram.guard.allocation import Allocation
from vram.guard.dlpack import LEGACY_STREAM
from vram.guard.driver import AllocationId, CudaDriver
from vram.units import size

# ---- streams ----

# attribute that holds the handle: PyTorch, CuPy, Numba and PyCUDA
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")


class Stream(NamedTuple):
    """A stream of any framework, and the object that must live as long as it is used.

    Handles 0, 1 and 2 are the driver's own default streams, which are never destroyed."""

    handle: int
    owner: object

    @property
    def is_a_default(self) -> bool:
        return self.handle <= 2

    @property
    def is_kept_alive(self) -> bool:
        return self.owner is not None or self.is_a_default


def stream_of(stream: Any) -> Stream:
    """Read *stream*: a number, or a stream of PyTorch, CuPy, Numba, PyCUDA or cuda.core."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return Stream(stream, None)
    protocol = getattr(stream, "__cuda_stream__", None)
    # Version 0 of the protocol is (version, handle); early cuda.core had it as a property.
    answer = protocol() if callable(protocol) else protocol
    if isinstance(answer, tuple) and len(answer) == 2:
        return Stream(int(answer[1]), stream)
    for attribute in _ATTRIBUTES:
        handle = _number(getattr(stream, attribute, None))
        if handle is not None:
            return Stream(handle, stream)
    raise UsageError(
        f"{stream!r} is not a CUDA stream", hint="give a framework's stream, or its handle as a number"
    )


def _number(handle: Any) -> int | None:
    value = getattr(handle, "value", handle)
    try:
        return int(value or 0) if handle is not None else None
    except (TypeError, ValueError):
        return None


# ---- kinds of memory ----

ATTACH_GLOBAL = 1
PORTABLE, DEVICEMAP = 1, 2


class DeviceAllocation(Allocation):
    """Plain device memory. Its free waits for all work on the device: 1.01 s after a kernel of 1 s."""

    kind, call = "device", "cuMemAlloc"

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        return cuda.allocate(c_size_t(self.nbytes), byref(made))

    def _free_if_ours(self, cuda: CudaDriver) -> int:
        return cuda.free(byref(self.id))


class PitchedAllocation(DeviceAllocation):
    """Rows of device memory, each aligned as the device reads best."""

    kind, call = "pitched", "cuMemAllocPitch"

    def __init__(self, width: int, height: int, element: int, device: int | None, zero_on_free: bool) -> None:
        self.width, self.height, self.pitch = width, height, width
        self._element = element
        super().__init__(width * height, device, zero_on_free)
        # Padding is memory too: it counts, and zeroing erases it.
        self.nbytes = self.pitch * height

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        pitch = c_size_t()
        code: int = cuda.cuMemAllocPitch_v2(byref(made), byref(pitch), self.width, self.height, self._element)
        self.pitch = pitch.value
        return code


class ManagedAllocation(DeviceAllocation):
    """Memory that moves between host and device; never more than is free: the driver would move pages in
    and out all the time."""

    kind, call = "managed", "cuMemAllocManaged"
    is_host_visible = True

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        free, total = c_size_t(), c_size_t()
        code: int = cuda.cuMemGetInfo_v2(byref(free), byref(total))
        if code == 0 and self.nbytes > free.value:
            message = (
                f"{size(self.nbytes)} of managed memory requested, {size(free.value)} free on the device"
            )
            raise OutOfMemory(message, hint="`vram why` shows who holds the rest", nbytes=self.nbytes)
        return code or int(cuda.cuMemAllocManaged(byref(made), self.nbytes, ATTACH_GLOBAL))


class PinnedAllocation(Allocation):
    """Host memory that stays in place, so that copies to and from devices run at full speed."""

    kind, call = "pinned", "cuMemHostAlloc"
    is_host_visible = True
    flags = PORTABLE

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        return int(cuda.cuMemHostAlloc(byref(made), self.nbytes, self.flags))

    def _free(self, cuda: CudaDriver) -> int:
        return int(cuda.cuMemFreeHost(self.pointer))

    def _zero(self) -> None:
        self.cuda.must("cuCtxSynchronize")
        ctypes.memset(self.pointer, 0, self.nbytes)


class ZeroCopyAllocation(PinnedAllocation):
    """Host memory that devices read and write in place, over the bus."""

    kind = "zero-copy"
    flags = PORTABLE | DEVICEMAP

    def device_pointer(self) -> int:
        found = c_uint64()
        with self.inside():
            self.cuda.must("cuMemHostGetDevicePointer_v2", byref(found), self.pointer, 0)
        return found.value


class StreamOrderedAllocation(Allocation):
    """Device memory from the driver's pool, in the order of a stream; the next owner gets all old bytes."""

    kind, call = "stream-ordered", "cuMemAllocAsync"
    _has_lost_its_stream = False

    def __init__(self, nbytes: int, stream: Stream, device: int | None, zero_on_free: bool) -> None:
        self.stream = stream
        # The CUDA array interface has no other value for stream 0.
        self.interface_stream = stream.handle or LEGACY_STREAM
        super().__init__(nbytes, device, zero_on_free)

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        return int(cuda.cuMemAllocAsync(byref(made), self.nbytes, self.stream.handle))

    def _free(self, cuda: CudaDriver) -> int:
        if not self.stream.is_a_default:
            return self._free_in_order(cuda)
        with self.inside():  # each context has its own default streams
            if self._has_lost_its_stream:
                cuda.must("cuCtxSynchronize")
            return self._free_in_order(cuda)

    def _free_in_order(self, cuda: CudaDriver) -> int:
        return int(cuda.cuMemFreeAsync(self.pointer, self.stream.handle))

    def _zero(self) -> None:
        # Work in other streams may still write: wait for it, or it would undo the erasing.
        self.cuda.must("cuCtxSynchronize")
        self.cuda.must("cuMemsetD8Async", self.pointer, 0, self.nbytes, self.stream.handle)
        self.cuda.must("cuStreamSynchronize", self.stream.handle)

    def synchronize(self) -> None:
        self.cuda.must("cuStreamSynchronize", self.stream.handle)

    def drop(self) -> None:
        """A stream given as a bare number may be destroyed by now, and using its handle crashes.

        Its order is lost with it, so the free waits for all work of the context.
        """
        if not self.stream.is_kept_alive:
            self.stream, self._has_lost_its_stream = Stream(0, None), True
        super().drop()
