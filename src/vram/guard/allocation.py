"""DOC"""

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
    NO_LIVE_CONTEXT,
    RELAXED_CAPTURE,
    Driver,
    driver,
)
from vram.guard.graph_capture import is_capturing_here
from vram.guard.native import LOST, Piece
from vram.units import counted, size

# The process that this is; a forked child learns that it is another one.
here = [os.getpid()]


def _look_again() -> None:
    here[0] = os.getpid()


os.register_at_fork(after_in_child=_look_again)


class Holding:
    """What owned and borrowed memory have in common. *pointer* is where a host or a device finds it.

    Making and ending one is all that stands between a program and the driver's own speed: what
    few need is not made before it is asked for.
    """

    kind = ""
    is_host_visible = False
    is_read_only = False
    is_released = False
    zero_on_free = False
    interface_stream: int | None = None
    leases: set[int] | None = None
    cuda: Driver
    lock: Any
    pid: int
    piece: Piece
    nbytes: int
    _where: int | None
    host_views: list[ref[memoryview]] | None = None
    _host_array: ref[object] | None = None

    # ---- is it there? ----

    @property
    def is_closed(self) -> bool:
        """In a forked child everything of its parent's is."""
        return self.is_released or self.pid != here[0]

    @property
    def is_there(self) -> bool:
        """Whether it can be used now. In a forked child nothing of its parent's can."""
        return not self.is_closed and self._is_the_same

    def check_process(self) -> None:
        if self.pid != here[0]:
            hint = "it is freed there; make buffers after the fork, or start processes by spawn"
            raise BufferLost(f"this buffer belongs to process {self.pid}, which forked this one", hint=hint)

    def check(self) -> None:
        """Raise unless this very memory is still there, and ours."""
        if self.pid != here[0]:
            self.check_process()
        if self.is_released:
            raise closed()
        if not self._is_the_same:
            raise self.lost()

    @property
    def _is_the_same(self) -> bool:
        same: bool = self.cuda.identity(self.piece.pointer) == self.piece.identity
        return same

    def lost(self) -> BufferLost:
        """Forget what is not there any more; the error that says so."""
        self._forget()
        hint = "cuDevicePrimaryCtxReset, cudaDeviceReset or the like freed it; make a new one"
        return BufferLost("this buffer's memory went with its CUDA context", hint=hint)

    def check_writable(self) -> None:
        """Raise where it may only be read. Of closed memory other checks tell that it is closed."""
        if self.is_read_only and not self.is_closed:
            hint = "its owner lends it for reading; vram.scrub erases it all the same"
            raise UsageError("this buffer's memory is read-only", hint=hint)

    def _forget(self) -> None:
        """Have nothing to give back any more."""
        raise NotImplementedError

    # ---- using it ----

    @property
    def pointer(self) -> int:
        pointer: int = self.piece.pointer
        return pointer

    @property
    def device(self) -> int:
        if self._where is None:
            self._where = self.cuda.ordinal_of(self.pointer)
        return self._where

    def device_pointer(self) -> int:
        return self.pointer

    def inside(self) -> AbstractContextManager[object]:
        """Be in the memory's own context, whatever this thread has current."""
        return self.cuda.within(self.pointer, self.device)

    def wait(self) -> None:
        """Come back when all work that may still write to it has ended."""
        self.cuda.must("cuCtxSynchronize")

    def zero(self) -> None:
        self.check()
        with self.inside():
            self._zero()

    def _zero(self) -> None:
        """Erase it in its own context, and come back when that is done."""
        # Work of other streams may still write: it ends first, or it would undo the erasing.
        self.cuda.must("cuCtxSynchronize")
        self.cuda.must("cuMemsetD8_v2", self.pointer, 0, self.nbytes)
        self.cuda.must("cuCtxSynchronize")

    def settle(self) -> None:
        """Make the memory ready for a consumer on any stream."""

    # ---- who else works on it ----

    def show(self, array: object, view: memoryview) -> None:
        """Remember a view that was handed out: it ends when the memory does."""
        self._host_array = ref(array)
        self.host_views = [each for each in self.host_views or () if each() is not None] + [ref(view)]

    def shown_array(self) -> object | None:
        return None if self._host_array is None else self._host_array()

    @property
    def is_in_use_elsewhere(self) -> bool:
        return bool(self.leases) or self.shown_array() is not None

    def recall(self) -> None:
        """End the views that were handed out; BufferLent where others still work on the memory."""
        if self.leases:
            raise _lent(f"this buffer is lent to {counted(len(self.leases), 'DLPack consumer')}")
        if self.host_views:
            self._end_views(self.host_views)

    def _end_views(self, views: list[ref[memoryview]]) -> None:
        for each in views:
            view = each()
            try:
                if view is not None:
                    view.release()
            except BufferError:
                raise _lent("an array or view of this buffer's host memory lives on") from None
        view = None
        if self.shown_array() is not None:
            raise _lent("a part of this buffer's host view lives on")

    # ---- giving it back ----

    def release(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError


def closed() -> VramError:
    return BufferClosed("this buffer is closed", hint="its memory was given back: make a new one")


def _lent(why: str) -> VramError:
    return BufferLent(
        f"{why}: nothing was freed", hint="drop the tensor or array first; vram.holders names who keeps it"
    )


LARGEST = 2**63 - 1

living: set[Allocation] = set()
# Their owners are gone, and a graph was captured at that moment.
_waiting: deque[Allocation] = deque()


class Allocation(Holding):
    """Taken when made. Subclasses say how their kind is taken, zeroed and given back."""

    call = ""

    def __init__(self, nbytes: int, device: int | None, zero_on_free: bool) -> None:
        cuda = driver()
        if _waiting:
            _drop_waiting()
        if device is not None:
            cuda.check_device(device)
        if nbytes > LARGEST:
            raise OutOfMemory(
                f"no device has {nbytes} bytes", hint="`vram why` tells what is free", nbytes=nbytes
            )
        self.cuda, self.lock, self.pid = cuda, RLock(), here[0]
        self.nbytes, self.zero_on_free, self._where = nbytes, zero_on_free, device
        piece = self.piece = Piece()
        # Tried in the current context at once: asking first whether there is one costs as much.
        code = self._take(cuda, piece) if device is None else INVALID_CONTEXT
        if code:
            self._take_elsewhere(cuda, piece, code)
        if not piece.identity:
            piece.identity = cuda.identity(piece.pointer)
        living.add(self)

    def _take_elsewhere(self, cuda: Driver, piece: Piece, code: int) -> None:
        if code in NO_LIVE_CONTEXT:
            code = cuda.in_context(self._where, lambda: self._take(cuda, piece))
        if code:
            error = cuda.translated(code, self.call, self.nbytes)
            error.add_note(f"{size(self.nbytes)} of {self.kind} memory were asked for")
            raise error

    # ---- what a kind says ----

    def _take(self, cuda: Driver, piece: Piece) -> int:
        """Take it, and tell where it lies; its number may be left out."""
        raise NotImplementedError

    def _give(self, cuda: Driver) -> int:
        """Give it back, or answer LOST where it is not there any more."""
        return self._free(cuda) if self._is_the_same else LOST

    def _free(self, cuda: Driver) -> int:
        raise NotImplementedError

    # ---- giving it back ----

    def _forget(self) -> None:
        self.is_released = True
        living.discard(self)

    def release(self) -> None:
        """Give it back now. A second time is BufferClosed; where zeroing fails nothing is given back."""
        if self.is_released:
            raise closed()
        try:
            living.remove(self)  # one call decides who of several at once gives it back
        except KeyError:
            raise BufferClosed("this buffer is closed", hint="another thread closed it just now") from None
        try:
            if self.zero_on_free:
                self.zero()
            code = self._give(self.cuda)
            if code:
                self._give_inside(code)
            self.is_released = True
        except BaseException:
            if not self.is_released:
                living.add(self)
            raise

    def _give_inside(self, code: int) -> None:
        """Where this thread's own context does not do: free in the memory's."""
        if code == LOST:
            raise self.lost()
        # It is there and ours, as was asked just now: an invalid value means a wrong context, too.
        if code in (INVALID_VALUE, *NO_LIVE_CONTEXT):
            with self.inside():
                code = self._give(self.cuda)
        self.cuda.check(code, "the free")

    def drop(self) -> None:
        """What a finalizer does: give back what is still there and ours, and be silent about the rest.

        It may run while a graph is captured, which a free could spoil: then it waits for the next
        buffer that is made, or for the end of the interpreter.
        """
        if self.is_closed:
            return
        mode = c_int(RELAXED_CAPTURE)
        with suppress(VramError):
            self.cuda.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            self._release_unless_captured()
        except (BufferClosed, BufferLost):
            pass
        except VramError:
            # At exit the driver may have left before us, and all memory with it.
            if self.cuda.cuCtxGetCurrent(byref(c_void_p())) != DEINITIALIZED:
                raise
        finally:
            with suppress(VramError):
                self.cuda.cuThreadExchangeStreamCaptureMode(byref(mode))

    def _release_unless_captured(self) -> None:
        if is_capturing_here():
            _waiting.append(self)
        else:
            self.release()


def _drop_waiting() -> None:
    """Try again once for each: what still has to wait is put back behind."""
    for _ in range(len(_waiting)):
        with suppress(IndexError):  # another thread was faster
            _waiting.popleft().drop()


@atexit.register
def _release_all() -> None:
    """Give back what is left, while Python and the driver still work.

    What others still work on is erased where that was asked for, and goes with the process.
    """
    for allocation in list(living):
        with suppress(VramError):
            if not allocation.is_in_use_elsewhere:
                allocation.drop()
            elif allocation.zero_on_free:
                allocation.zero()


# A forked child has no right to its parent's memory, and would only meet errors in trying.
os.register_at_fork(after_in_child=living.clear)
os.register_at_fork(after_in_child=_waiting.clear)
