"""DOC"""

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
from vram.payloads.trim.frameworks.cupy import each_device

# ---- caps inside frameworks ----


Undo = Callable[[], None]


def cap(limit: int) -> list[Undo]:
    """Bound every loaded framework to what it uses now and *limit* more; return how to undo that."""
    undo: list[Undo] = []
    for each in (_cap_torch, _cap_cupy):
        # A version without an expected call is left without a cap: the end of the scope still tells.
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
        # Nested scopes only ever tighten.
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
    """Raised in the scope's thread from outside, which can only be done by class; the scope words it."""

    def __init__(self) -> None:
        super().__init__("a scope passed its limit")


class Watcher:
    """Runs beside one scope. ``interrupts`` False: it only notes, for code that shares its thread."""

    def __init__(
        self, gained: WeakMethod[Callable[[], int]], limit: int, every_s: float, *, interrupts: bool
    ) -> None:
        self.peak = 0
        self._gained, self._limit, self._every_s = gained, limit, every_s
        self._victim = threading.get_ident() if interrupts else None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._struck = False
        self._thread = threading.Thread(target=self._run, name="vram-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, and take back an interruption that has not arrived yet."""
        with self._lock:
            self._ended.set()
            if self._struck and self._victim is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._victim), None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            gained = self._look()
            if gained is None:
                return
            self.peak = max(self.peak, gained)
            if gained > self._limit and self._strike():
                return

    def _look(self) -> int | None:
        """None where the scope was left without its end: a strike would hit somebody else's work."""
        measure = self._gained()
        return None if measure is None else measure()

    def _strike(self) -> bool:
        if self._victim is None:
            return False
        with self._lock:
            if not self._ended.is_set():
                self._struck = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._victim), ctypes.py_object(StoppedByWatcher)
                )
        return True
