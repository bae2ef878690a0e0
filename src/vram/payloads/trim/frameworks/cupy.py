"""CuPy: device pools, the pinned pool and FFT plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, Framework, loaded

if TYPE_CHECKING:
    from ..framework import Line


def each_device(cupy: Any) -> Iterator[int]:
    """Every device that CuPy can work on, each the current one while it is yielded.

    Its Device sets the primary context when it is left. In a context of the program's own that would
    take the thread out of it, and make a primary one: there only that context's device is told.
    """
    if driver.is_in_own_context():
        yield from (each for each in [driver.current()] if each is not None)
        return
    for device in driver.primaries():
        with cupy.cuda.Device(device):
            yield device


class CuPy(Framework):
    """Its default pool, and one that the program put in its place."""

    name = "CuPy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        default = cupy.get_default_memory_pool()
        current = getattr(cupy.cuda.get_allocator(), "__self__", None)
        replaced = current is not default
        others = [current] if replaced and hasattr(current, "free_all_blocks") else []
        self._pools = [default, *others]
        self._is_foreign = replaced and not others

    @classmethod
    def find(cls) -> Iterator[CuPy]:
        cupy = loaded("cupy")
        if cupy is not None:
            yield cls(cupy)

    def measure(self) -> Iterator[Line]:
        counted = [pool for pool in self._pools if hasattr(pool, "free_bytes")]
        for device in each_device(self._cupy):
            held = sum(pool.total_bytes() for pool in counted)
            yield self.line(DEVICE, device, held, sum(pool.free_bytes() for pool in counted))

    def release(self) -> Iterator[str]:
        plans = loaded("cupy.fft._cache")
        for _ in each_device(self._cupy):
            if plans is not None:
                plans.clear_plan_cache()
            for pool in self._pools:
                pool.free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()
        if self._is_foreign:
            yield "CuPy allocates through a function of the program's own, which cannot be emptied"
