"""One piece of memory that this process must give back, exactly once.

Whoever ends it first wins: a call of ``release``, a finalizer in any thread, or the end of the
interpreter. Nothing here trusts an address. Before memory is touched or freed the driver is
asked whether it still is the same allocation: after a context reset the same address may be
somebody else's.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from ctypes import byref, c_int, c_uint64

from vram.errors import BufferClosed, BufferLost, OutOfMemory, VramError
from vram.guard.driver import DEINITIALIZED, INVALID_CONTEXT, RELAXED_CAPTURE, Driver, driver
from vram.units import size

LARGEST = 2**63 - 1

living: dict[int, Allocation] = {}
_serials = itertools.count()


class Allocation:
    """Taken when made. Subclasses say how their kind is taken, zeroed and given back."""

    kind = ""
    call = ""
    is_host_visible = False

    def __init__(self, nbytes: int, *, device: int | None = None, zero_on_free: bool = False) -> None:
        cuda = driver()
        if nbytes > LARGEST:
            raise OutOfMemory(f"no device has {size(nbytes)}", hint="`vram why` tells what is free")
        self.nbytes = nbytes
        self.zero_on_free = zero_on_free
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self._cuda = cuda
        self._where = device if device is None else cuda.check_device(device)
        word = c_uint64()
        code = cuda.in_context(self._where, lambda: self._take(cuda, word))
        if code:
            self._refuse(code)
        self.pointer = word.value
        self._identity = cuda.identity(self.pointer)
        self.serial = next(_serials)
        living[self.serial] = self

    def _refuse(self, code: int) -> None:
        error = self._cuda.translated(code, self.call)
        error.add_note(f"{size(self.nbytes)} of {self.kind} memory were asked for")
        raise error

    # ---- what a kind says ----

    def _take(self, cuda: Driver, pointer: c_uint64) -> int:
        raise NotImplementedError

    def _give(self, cuda: Driver) -> int:
        raise NotImplementedError

    def _zero(self, cuda: Driver) -> None:
        """Erase it in its own context, and come back when that is done."""
        # Work of other streams may still write: it ends first, or it would undo the erasing.
        cuda.must("cuCtxSynchronize")
        cuda.must("cuMemsetD8_v2", self.pointer, 0, self.nbytes)
        cuda.must("cuCtxSynchronize")

    # ---- using it ----

    @property
    def is_released(self) -> bool:
        return self.serial not in living

    @property
    def device(self) -> int:
        if self._where is None:
            self._where = self._cuda.ordinal_of(self.pointer)
        return self._where

    def check(self) -> None:
        """Raise unless this very memory is still there, and ours."""
        if self.pid != os.getpid():
            hint = "it is freed there; make buffers after the fork, or start processes by spawn"
            raise BufferLost(f"this buffer belongs to process {self.pid}, which forked this one", hint=hint)
        if self.is_released:
            raise BufferClosed("this buffer is closed", hint="its memory was given back: make a new one")
        if self._cuda.identity(self.pointer) != self._identity:
            self._forget()

    def _forget(self) -> None:
        """The driver does not know the memory any more, or gave its address to somebody else."""
        living.pop(self.serial, None)
        hint = "cuDevicePrimaryCtxReset, cudaDeviceReset or the like freed it; make a new one"
        raise BufferLost("this buffer's memory went with its CUDA context", hint=hint)

    def inside(self) -> AbstractContextManager[None]:
        """Be in the memory's own context, whatever this thread has current."""
        context = self._cuda.context_of(self.pointer)
        return nullcontext() if context == self._cuda.current_context() else self._cuda.inside(context)

    def zero(self) -> None:
        self.check()
        with self.inside():
            self._zero(self._cuda)

    # ---- giving it back ----

    def release(self) -> None:
        """Give it back now. A second time is BufferClosed; where zeroing fails nothing is given back."""
        self.check()
        if living.pop(self.serial, None) is None:
            raise BufferClosed("this buffer is closed", hint="another thread closed it at this very moment")
        try:
            if self.zero_on_free:
                with self.inside():
                    self._zero(self._cuda)
            self._cuda.check(self._give_anywhere(), "the free")
        except BaseException:
            living[self.serial] = self
            raise

    def _give_anywhere(self) -> int:
        """Free in whatever context this thread has; in the memory's own where that does not do."""
        code = self._give(self._cuda)
        if code != INVALID_CONTEXT:
            return code
        with self._cuda.inside(self._cuda.context_of(self.pointer)):
            return self._give(self._cuda)

    def drop(self) -> None:
        """What a finalizer does: give back what is still there and ours, and be silent about the rest.

        A finalizer may run while this thread captures a graph, which a free would end with an
        error: the relaxed mode lets it pass.
        """
        if self.is_released or self.pid != os.getpid():
            return
        mode = c_int(RELAXED_CAPTURE)
        with suppress(VramError):
            self._cuda.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            self.release()
        except (BufferClosed, BufferLost):
            pass
        except VramError:
            # At exit the driver may have left before us, and all memory with it.
            if self._cuda.cuCtxGetCurrent(byref(c_uint64())) != DEINITIALIZED:
                raise
        finally:
            with suppress(VramError):
                self._cuda.cuThreadExchangeStreamCaptureMode(byref(mode))


@atexit.register
def _release_all() -> None:
    """Give back what is left, while Python and the driver still work.

    What a DLPack consumer still uses is erased where that was asked for, and goes with the process.
    """
    for allocation in list(living.values()):
        with suppress(VramError):
            allocation.drop()


def _start_anew() -> None:
    """In a forked child: its parent's memory is not its own, and a lock held at the fork stays held."""
    living.clear()


os.register_at_fork(after_in_child=_start_anew)
