"""One piece of memory that this process must give back, exactly once.

Whoever ends it first wins: a call of ``release``, a finalizer in any thread, or the end of the
interpreter.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from contextlib import suppress
from ctypes import byref, c_int, c_void_p
from threading import RLock

from vram.errors import BufferClosed, BufferLost, OutOfMemory, VramError
from vram.guard.capture import is_capturing_here
from vram.guard.driver import (
    DEINITIALIZED,
    INVALID_CONTEXT,
    INVALID_VALUE,
    NO_LIVE_CONTEXT,
    RELAXED_CAPTURE,
    Driver,
    driver,
)
from vram.guard.holding import Holding, closed, here
from vram.guard.owning import LOST, Piece
from vram.units import size

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
