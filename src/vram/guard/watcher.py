"""A thread that looks at a scope's memory every so often, for growth that no framework can bound.

It can stop Python code between two of its instructions, not inside one long native call; and
it sees what is there when it looks, not what came and went in between.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from weakref import WeakMethod

from vram.errors import LimitExceeded


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
