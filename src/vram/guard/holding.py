"""Memory that this process may use: whose it is, whether it is still there, who else works on it.

Nothing here trusts an address. Before memory is touched or freed the driver is asked whether it
still is the same allocation: after a context reset the same address may be somebody else's.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any
from weakref import ref

from vram.errors import BufferClosed, BufferLent, BufferLost, UsageError, VramError
from vram.guard.driver import Driver
from vram.guard.owning import Piece
from vram.units import counted

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
