"""The limit of a scope: caps inside PyTorch and CuPy, and a thread that watches all other memory.

JAX fixes its limit when it starts, and allocations outside frameworks have no cap.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakMethod

from vram.errors import LimitExceeded
from vram.payloads.trim.driver import driver
from vram.payloads.trim.framework import loaded
from vram.payloads.trim.frameworks import each_device

# ---- caps inside frameworks ----


Undo = Callable[[], None]


def cap(limit: int) -> list[Undo]:
    """Cap every loaded framework at what it uses now plus *limit*; returns functions that undo that."""
    undo: list[Undo] = []
    for each in (_cap_torch, _cap_cupy):
        # A version without an expected call gets no cap: the limit is still checked at the end.
        with suppress(AttributeError, RuntimeError, ValueError):
            undo += each(limit)
    return undo


def _cap_torch(limit: int) -> Iterator[Undo]:
    cuda = loaded("torch.cuda")
    if cuda is None or not cuda.is_initialized() or cuda._is_in_bad_fork():
        return
    for device in driver.primaries():
        total = cuda.get_device_properties(device).total_memory
        before = getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)
        wanted = (cuda.memory_allocated(device) + limit) / total
        # A nested scope can only lower the cap.
        cuda.set_per_process_memory_fraction(min(before, wanted), device)
        yield partial(cuda.set_per_process_memory_fraction, before, device)


def _cap_cupy(limit: int) -> Iterator[Undo]:
    cupy = loaded("cupy")
    if cupy is None:
        return
    pool = cupy.get_default_memory_pool()
    before: dict[int, int] = {}
    yield partial(_restore, cupy, pool, before)
    for device in each_device(cupy):
        before[device], wanted = pool.get_limit(), pool.used_bytes() + limit
        pool.set_limit(size=min(before[device], wanted) if before[device] else wanted)


def _restore(cupy: Any, pool: Any, before: dict[int, int]) -> None:
    for device in each_device(cupy):
        if device in before:
            pool.set_limit(size=before[device])


# ---- the watcher thread ----


class StoppedByWatcher(LimitExceeded):
    """Raised in the scope's thread by the watcher. That works only with a class, not with an instance:
    the scope adds the message."""

    def __init__(self) -> None:
        super().__init__("a scope exceeded its limit")


class Watcher:
    """Measures one scope's gain every *every_s* seconds, and interrupts the scope beyond *limit*: between two
    instructions of Python, not inside a long native call. Without *interrupts*, for code that shares its
    thread with other tasks, it only records the ``peak``.
    """

    def __init__(
        self, gained: WeakMethod[Callable[[], int]], limit: int, every_s: float, *, interrupts: bool
    ) -> None:
        self.peak = 0
        self._gained, self._limit, self._every_s = gained, limit, every_s
        self._scope_thread = threading.get_ident() if interrupts else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._has_interrupted = False
        self._thread = threading.Thread(target=self._run, name="vram-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, and cancel an interrupt that has not arrived yet."""
        with self._lock:
            self._ended.set()
            if self._has_interrupted and self._scope_thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._scope_thread), None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            measure = self._gained()
            if measure is None:  # the scope was dropped without its end: an interrupt would hit other work
                return
            gained = measure()
            # The method must not be held while waiting, or the scope would never be dropped.
            del measure
            self.peak = max(self.peak, gained)
            if gained > self._limit and self._interrupt():
                return

    def _interrupt(self) -> bool:
        if self._scope_thread is None:
            return False
        with self._lock:
            if not self._ended.is_set():
                self._has_interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._scope_thread), ctypes.py_object(StoppedByWatcher)
                )
        return True
