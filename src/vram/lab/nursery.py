"""Processes that start before they are needed: they wait with a library imported, and no CUDA call made.

Starting Python and importing a framework takes longer than most experiments do.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from vram.lab.actor import Puppet


class Nursery:
    """Waiting processes by the library that they have imported; "" is none."""

    def __init__(self, gpu_uuid: str) -> None:
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu_uuid}
        self._waiting: dict[str, deque[Puppet]] = {}

    def expect(self, library: str) -> None:
        """Start one ahead of time."""
        puppet = Puppet(self.environment)
        self._waiting.setdefault(library, deque()).append(puppet)
        if library:
            puppet.begin("python", f"import {library}")

    def take(self, library: str, left_s: Callable[[], float]) -> Puppet:
        """One that waits, or a fresh one. What its import says is heard by its first answer."""
        waiting = self._waiting.get(library)
        puppet = waiting.popleft() if waiting else Puppet(self.environment)
        puppet.left_s = left_s
        return puppet

    def close(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop().close()
