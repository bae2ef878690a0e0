"""PyCUDA: pools are the program's own objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..framework import DEVICE, PINNED, Framework, alive, loaded

if TYPE_CHECKING:
    from ..framework import Line

KINDS = ("DeviceMemoryPool", "PageLockedMemoryPool")


class PyCuda(Framework):
    """Pools are found among the live objects."""

    name = "PyCUDA"

    def __init__(self, pools: list[Any]) -> None:
        self._pools = pools

    @classmethod
    def find(cls) -> Iterator[PyCuda]:
        module = loaded("pycuda._driver")
        if module is not None:
            yield cls(alive(tuple(getattr(module, kind) for kind in KINDS if hasattr(module, kind))))

    def measure(self) -> Iterator[Line]:
        for pool in self._pools:
            held, used = getattr(pool, "managed_bytes", None), getattr(pool, "active_bytes", None)
            memory = PINNED if "PageLocked" in type(pool).__name__ else DEVICE
            yield self.line(memory, None, held, None if held is None or used is None else held - used)

    def release(self) -> Iterator[str]:
        for pool in self._pools:
            pool.free_held()
        tools = loaded("pycuda.tools")
        if tools is not None:
            tools.clear_context_caches()
        yield from ()
