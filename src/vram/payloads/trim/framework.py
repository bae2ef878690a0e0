"""What every framework offers here: how it is found, what it holds, how it releases that."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import compress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # programs on Python 3.8 are trimmed too
    Line = dict[str, Any]

DEVICE, PINNED = "device", "pinned host"


class Framework:
    """One library that holds memory. Only ``find`` is called where it may not be loaded."""

    name = ""

    @classmethod
    def find(cls) -> Iterator[Framework]:
        """Yield one where the library is loaded and already uses a GPU; it is never started for this."""
        yield from ()

    def measure(self) -> Iterator[Line]:
        yield from ()

    def objections(self) -> Iterator[str]:
        """Yield why nothing may be released just now."""
        yield from ()

    def may_collect(self) -> bool:
        """Whether this thread may free the arrays that a garbage collection finds."""
        return True

    def release(self) -> Iterator[str]:
        """Release it; yield what could not be, as sentences."""
        yield from ()

    def line(
        self,
        memory: str,
        device: int | None,
        held: int | None,
        reclaimable: int | None,
        used: int | None = None,
    ) -> Line:
        """*used* where it is not simply the rest: some of what is unused cannot be released either."""
        if used is None and held is not None and reclaimable is not None:
            used = held - reclaimable
        return {
            "name": self.name,
            "memory": memory,
            "device": device,
            "held": held,
            "reclaimable": reclaimable,
            "used": used,
        }


def loaded(name: str) -> Any:
    """A module that this process has imported to its end; None otherwise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def alive(kinds: tuple[type, ...]) -> list[Any]:
    """Live objects of *kinds*, found by their type alone: asking an object may run its code."""
    heap: list[Any] = gc.get_objects() if kinds else []
    # There are far fewer types than objects, and loops that run in C go over a million objects at once.
    wanted = {kind for kind in set(map(type, heap)) if issubclass(kind, kinds)}
    return list(compress(heap, map(wanted.__contains__, map(type, heap)))) if wanted else []
