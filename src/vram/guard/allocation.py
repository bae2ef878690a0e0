"""Memory that a buffer uses: whether it is still there, who else uses it, and freeing it exactly once.

Before memory is used or freed the driver is asked whether it is still the same allocation: after a context
reset the same address may belong to another one.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from contextlib import AbstractContextManager, suppress
from ctypes import byref, c_int, c_void_p
from threading import RLock
from typing import Any
from weakref import ref

from vram.errors import BufferClosed, BufferLent, BufferLost, OutOfMemory, UsageError, VramError
from vram.guard.driver import (
    DEINITIALIZED,
    INVALID_CONTEXT,
    INVALID_VALUE,
    LOST,
    NO_LIVE_CONTEXT,
    RELAXED_CAPTURE,
    AllocationId,
    CudaDriver,
    driver,
    is_capturing_here,
)
from vram.python_310 import add_note
from vram.units import counted, size

# The pid of this process; updated in a forked child.
current_pid = [os.getpid()]


def _update_pid() -> None:
    current_pid[0] = os.getpid()


os.register_at_fork(after_in_child=_update_pid)


class BufferMemory:
    """What owned and borrowed memory have in common. Attributes that few buffers need are class defaults:
    creating one must cost hardly more than the driver's own calls."""

    kind = ""
    is_host_visible = False
    is_read_only = False
    is_released = False
    zero_on_free = False
    interface_stream: int | None = None
    exports: set[int] | None = None
    cuda: CudaDriver
    lock: Any
    pid: int
    id: AllocationId
    nbytes: int
    _device: int | None
    host_views: list[ref[memoryview]] | None = None
    _host_array: ref[object] | None = None

    # ---- is it valid? ----

    @property
    def is_closed(self) -> bool:
        """In a forked child all memory of the parent counts as closed."""
        return self.is_released or self.pid != current_pid[0]

    @property
    def is_valid_now(self) -> bool:
        """Whether it can be used now; never in a forked child of its process."""
        return not self.is_closed and self._is_same_allocation

    def check_process(self) -> None:
        if self.pid != current_pid[0]:
            hint = "the parent frees it; create buffers after the fork, or start processes with spawn"
            raise BufferLost(f"this buffer belongs to process {self.pid}, the parent of this one", hint=hint)

    def check(self) -> None:
        """Raise BufferClosed or BufferLost unless this is still the same allocation, and ours."""
        if self.pid != current_pid[0]:
            self.check_process()
        if self.is_released:
            raise closed()
        if not self._is_same_allocation:
            raise self.lost()

    @property
    def _is_same_allocation(self) -> bool:
        same: bool = self.cuda.allocation_number(self.id.pointer) == self.id.number
        return same

    def lost(self) -> BufferLost:
        """Forget memory that no longer exists; returns the error to raise."""
        self._forget()
        hint = "cuDevicePrimaryCtxReset, cudaDeviceReset or a similar call freed it; create a new one"
        return BufferLost("this buffer's memory was freed with its CUDA context", hint=hint)

    def check_writable(self) -> None:
        """Raise UsageError if it may only be read. That it is closed is reported by other checks."""
        if self.is_read_only and not self.is_closed:
            hint = "its owner exports it as read-only; vram.scrub erases it anyway"
            raise UsageError("this buffer's memory is read-only", hint=hint)

    def _forget(self) -> None:
        """Have nothing to free any more."""
        raise NotImplementedError

    # ---- using it ----

    @property
    def pointer(self) -> int:
        pointer: int = self.id.pointer
        return pointer

    @property
    def device(self) -> int:
        if self._device is None:
            self._device = self.cuda.ordinal_of(self.pointer)
        return self._device

    def device_pointer(self) -> int:
        return self.pointer

    def inside(self) -> AbstractContextManager[object]:
        """Enter the memory's own context, whichever is current in this thread."""
        return self.cuda.within(self.pointer, self.device)

    def wait(self) -> None:
        """Wait for all work that may still write to it."""
        self.cuda.must("cuCtxSynchronize")

    def zero(self) -> None:
        self.check()
        with self.inside():
            self._zero()

    def _zero(self) -> None:
        """Erase it in its own context, and wait for that."""
        # Work in other streams may still write: wait for it, or it would undo the erasing.
        self.cuda.must("cuCtxSynchronize")
        self.cuda.must("cuMemsetD8_v2", self.pointer, 0, self.nbytes)
        self.cuda.must("cuCtxSynchronize")

    def synchronize(self) -> None:
        """Wait until a consumer may use the memory on any stream."""

    # ---- who else uses it ----

    def add_host_view(self, array: object, view: memoryview) -> None:
        """Register a view that was handed out: it is ended before the memory is freed."""
        self._host_array = ref(array)
        self.host_views = [each for each in self.host_views or () if each() is not None] + [ref(view)]

    def host_array(self) -> object | None:
        return None if self._host_array is None else self._host_array()

    @property
    def is_used_by_others(self) -> bool:
        return bool(self.exports) or self.host_array() is not None

    def end_views(self) -> None:
        """End the views that were handed out; BufferLent if others still use the memory."""
        if self.exports:
            raise _lent(f"this buffer is exported to {counted(len(self.exports), 'DLPack consumer')}")
        if self.host_views:
            self._release_views(self.host_views)

    def _release_views(self, views: list[ref[memoryview]]) -> None:
        for each in views:
            view = each()
            try:
                if view is not None:
                    view.release()
            except BufferError:
                raise _lent("an array or view of this buffer's host memory still exists") from None
        view = None
        if self.host_array() is not None:
            raise _lent("a slice of this buffer's host view still exists")

    # ---- freeing it ----

    def release(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError


def closed() -> VramError:
    return BufferClosed("this buffer is closed", hint="its memory was freed: create a new one")


def _lent(why: str) -> VramError:
    return BufferLent(
        f"{why}: nothing was freed", hint="drop the tensor or array first; vram.holders names who holds it"
    )


MAX_NBYTES = 2**63 - 1

living: set[Allocation] = set()
# Dropped by their owners while a graph was captured.
_waiting: deque[Allocation] = deque()


class Allocation(BufferMemory):
    """Memory of this process, allocated on creation. Subclasses define how their kind is allocated,
    erased and freed."""

    call = ""

    def __init__(self, nbytes: int, device: int | None, zero_on_free: bool) -> None:
        cuda = driver()
        if _waiting:
            _drop_waiting()
        if device is not None:
            cuda.check_device(device)
        if nbytes > MAX_NBYTES:
            raise OutOfMemory(
                f"no device has {nbytes} bytes", hint="`vram why` shows what is free", nbytes=nbytes
            )
        self.cuda, self.lock, self.pid = cuda, RLock(), current_pid[0]
        self.nbytes, self.zero_on_free, self._device = nbytes, zero_on_free, device
        made = self.id = AllocationId()
        # Tried in the current context at once: checking first whether there is one costs as much.
        code = self._allocate(cuda, made) if device is None else INVALID_CONTEXT
        if code:
            self._allocate_on_device(cuda, made, code)
        if not made.number:
            made.number = cuda.allocation_number(made.pointer)
        living.add(self)

    def _allocate_on_device(self, cuda: CudaDriver, made: AllocationId, code: int) -> None:
        if code in NO_LIVE_CONTEXT:
            code = cuda.in_context(self._device, lambda: self._allocate(cuda, made))
        if code:
            error = cuda.translate(code, self.call, self.nbytes)
            add_note(error, f"{size(self.nbytes)} of {self.kind} memory was requested")
            raise error

    # ---- defined by each kind ----

    def _allocate(self, cuda: CudaDriver, made: AllocationId) -> int:
        """Allocate, and set the address in *made*; the number may be left 0. Returns the driver's code."""
        raise NotImplementedError

    def _free_if_ours(self, cuda: CudaDriver) -> int:
        """Free it and return the driver's code; LOST if it is no longer the same allocation."""
        return self._free(cuda) if self._is_same_allocation else LOST

    def _free(self, cuda: CudaDriver) -> int:
        raise NotImplementedError

    # ---- freeing it ----

    def _forget(self) -> None:
        self.is_released = True
        living.discard(self)

    def release(self) -> None:
        """Free it now. A second call raises BufferClosed; if erasing fails, nothing is freed."""
        if self.is_released:
            raise closed()
        try:
            living.remove(self)  # atomic: of several threads exactly one frees it
        except KeyError:
            raise BufferClosed("this buffer is closed", hint="another thread closed it just now") from None
        try:
            if self.zero_on_free:
                self.zero()
            code = self._free_if_ours(self.cuda)
            if code:
                self._free_in_its_context(code)
            self.is_released = True
        except BaseException:
            if not self.is_released:
                living.add(self)
            raise

    def _free_in_its_context(self, code: int) -> None:
        """After a free failed in this thread's context: free it in the memory's own."""
        if code == LOST:
            raise self.lost()
        # It exists and is ours, as was just checked: an invalid value means a wrong context, too.
        if code in (INVALID_VALUE, *NO_LIVE_CONTEXT):
            with self.inside():
                code = self._free_if_ours(self.cuda)
        self.cuda.check(code, "the free")

    def drop(self) -> None:
        """Free it from a finalizer: if it still exists and is ours. Memory that is gone is no error.

        A finalizer may run while a graph is captured, which a free would invalidate: then the free waits
        for the next buffer that is made, or for the end of the interpreter.
        """
        if self.is_closed:
            return
        mode = c_int(RELAXED_CAPTURE)
        with suppress(VramError):
            self.cuda.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            if is_capturing_here():
                _waiting.append(self)
            else:
                self.release()
        except (BufferClosed, BufferLost):
            pass
        except VramError:
            # At exit the driver may be shut down already, and all memory with it.
            if self.cuda.cuCtxGetCurrent(byref(c_void_p())) != DEINITIALIZED:
                raise
        finally:
            with suppress(VramError):
                self.cuda.cuThreadExchangeStreamCaptureMode(byref(mode))


def _drop_waiting() -> None:
    """Try each once more; what still has to wait is appended again."""
    for _ in range(len(_waiting)):
        with suppress(IndexError):  # another thread was faster
            _waiting.popleft().drop()


@atexit.register
def _release_all() -> None:
    """Free what is left, while Python and the driver still work; what others still use is only erased."""
    for allocation in list(living):
        with suppress(VramError):
            if not allocation.is_used_by_others:
                allocation.drop()
            elif allocation.zero_on_free:
                allocation.zero()


# A forked child cannot free its parent's memory: each try would be an error.
os.register_at_fork(after_in_child=living.clear)
os.register_at_fork(after_in_child=_waiting.clear)
