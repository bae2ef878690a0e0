"""DOC"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint64
from typing import Any, NamedTuple

from vram.errors import OutOfMemory, UsageError
from vram.guard.allocation import Allocation
from vram.guard.dlpack import LEGACY_STREAM
from vram.guard.driver import Driver
from vram.guard.native import Piece
from vram.units import size

# ---- streams ----


# attribute that holds the handle: PyTorch, CuPy, Numba and PyCUDA
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")


class Stream(NamedTuple):
    """Handles 0, 1 and 2 are the driver's own default streams and never end."""

    handle: int
    owner: object

    @property
    def is_a_default(self) -> bool:
        return self.handle <= 2

    @property
    def is_kept_alive(self) -> bool:
        return self.owner is not None or self.is_a_default


def stream_of(named: Any) -> Stream:
    """Read *named*: a number, or a stream of PyTorch, CuPy, Numba, PyCUDA or cuda.core."""
    if isinstance(named, int) and not isinstance(named, bool) and named >= 0:
        return Stream(named, None)
    protocol = getattr(named, "__cuda_stream__", None)
    # Version 0 of the protocol is (version, handle); early cuda.core had it as a property.
    answer = protocol() if callable(protocol) else protocol
    if isinstance(answer, tuple) and len(answer) == 2:
        return Stream(int(answer[1]), named)
    for attribute in _ATTRIBUTES:
        handle = _number(getattr(named, attribute, None))
        if handle is not None:
            return Stream(handle, named)
    raise UsageError(
        f"{named!r} is not a CUDA stream", hint="give a framework's stream, or its handle as a number"
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


class Device(Allocation):
    """Plain device memory. Its free waits for all work of the device: 1.01 s behind a kernel of 1 s."""

    kind, call = "device", "cuMemAlloc"

    def _take(self, cuda: Driver, piece: Piece) -> int:
        return cuda.take(c_size_t(self.nbytes), byref(piece))

    def _give(self, cuda: Driver) -> int:
        return cuda.give(byref(self.piece))


class Pitched(Device):
    """Rows of device memory, each beginning where the device reads best."""

    kind, call = "pitched", "cuMemAllocPitch"

    def __init__(self, width: int, height: int, element: int, device: int | None, zero_on_free: bool) -> None:
        self.width, self.height, self.pitch = width, height, width
        self._element = element
        super().__init__(width * height, device, zero_on_free)
        # Padding is memory too: it counts, and zeroing erases it.
        self.nbytes = self.pitch * height

    def _take(self, cuda: Driver, piece: Piece) -> int:
        pitch = c_size_t()
        code: int = cuda.cuMemAllocPitch_v2(
            byref(piece), byref(pitch), self.width, self.height, self._element
        )
        self.pitch = pitch.value
        return code


class Managed(Device):
    """Memory that moves between host and device. Never more than the device has free.

    The driver would give more than that, and move pages in and out for ever.
    """

    kind, call = "managed", "cuMemAllocManaged"
    is_host_visible = True

    def _take(self, cuda: Driver, piece: Piece) -> int:
        free, total = c_size_t(), c_size_t()
        code: int = cuda.cuMemGetInfo_v2(byref(free), byref(total))
        if code == 0 and self.nbytes > free.value:
            message = (
                f"{size(self.nbytes)} of managed memory asked for, {size(free.value)} free on the device"
            )
            raise OutOfMemory(message, hint="`vram why` tells who holds the rest", nbytes=self.nbytes)
        return code or int(cuda.cuMemAllocManaged(byref(piece), self.nbytes, ATTACH_GLOBAL))


class Pinned(Allocation):
    """Host memory that stays in place, so that copies to and from devices run at full speed."""

    kind, call = "pinned", "cuMemHostAlloc"
    is_host_visible = True
    flags = PORTABLE

    def _take(self, cuda: Driver, piece: Piece) -> int:
        return int(cuda.cuMemHostAlloc(byref(piece), self.nbytes, self.flags))

    def _free(self, cuda: Driver) -> int:
        return int(cuda.cuMemFreeHost(self.pointer))

    def _zero(self) -> None:
        self.cuda.must("cuCtxSynchronize")
        ctypes.memset(self.pointer, 0, self.nbytes)


class ZeroCopy(Pinned):
    """Host memory that devices read and write in place, over the bus."""

    kind = "zero-copy"
    flags = PORTABLE | DEVICEMAP

    def device_pointer(self) -> int:
        found = c_uint64()
        with self.inside():
            self.cuda.must("cuMemHostGetDevicePointer_v2", byref(found), self.pointer, 0)
        return found.value


class StreamOrdered(Allocation):
    """Device memory of the driver's pool, taken and given back in the order of a stream.

    The pool hands old bytes over to its next owner: measured, every one of them.
    """

    kind, call = "stream-ordered", "cuMemAllocAsync"
    _has_lost_its_stream = False

    def __init__(self, nbytes: int, stream: Stream, device: int | None, zero_on_free: bool) -> None:
        self.stream = stream
        # The interface has no name for stream 0 but this one.
        self.interface_stream = stream.handle or LEGACY_STREAM
        super().__init__(nbytes, device, zero_on_free)

    def _take(self, cuda: Driver, piece: Piece) -> int:
        return int(cuda.cuMemAllocAsync(byref(piece), self.nbytes, self.stream.handle))

    def _free(self, cuda: Driver) -> int:
        if not self.stream.is_a_default:
            return self._free_in_order(cuda)
        with self.inside():  # each context has default streams of its own
            if self._has_lost_its_stream:
                cuda.must("cuCtxSynchronize")
            return self._free_in_order(cuda)

    def _free_in_order(self, cuda: Driver) -> int:
        return int(cuda.cuMemFreeAsync(self.pointer, self.stream.handle))

    def _zero(self) -> None:
        # Work of other streams may still write: it ends first, or it would undo the erasing.
        self.cuda.must("cuCtxSynchronize")
        self.cuda.must("cuMemsetD8Async", self.pointer, 0, self.nbytes, self.stream.handle)
        self.cuda.must("cuStreamSynchronize", self.stream.handle)

    def settle(self) -> None:
        self.cuda.must("cuStreamSynchronize", self.stream.handle)

    def drop(self) -> None:
        """A stream given as a bare number may be gone by now, and using a dead handle crashes.

        Its order is lost with it: what it may still be doing is waited for.
        """
        if not self.stream.is_kept_alive:
            self.stream, self._has_lost_its_stream = Stream(0, None), True
        super().drop()
