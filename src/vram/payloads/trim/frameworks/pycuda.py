"""PyCUDA: pools are the program's own objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..framework import DEVICE, PINNED, Framework, alive, loaded

if TYPE_CHECKING:
    from ..framework import Line

KINDS = ("DeviceMemoryPool", "PageLockedMemoryPool")
ELSEWHERE = (
    "PyCUDA frees in the thread of its context alone, and anywhere else it loses the memory: its pools were "
    "left as they are, and no garbage was collected. vram.flush() in that thread does both"
)


class PyCuda(Framework):
    """Pools are found among the live objects.

    Asked to free in another thread than its context's, PyCUDA warns, frees nothing and forgets what it was
    to free, so that the memory is lost until the process ends (seen with 2026.1). That holds for pools and
    for arrays whose last reference goes.
    """

    name = "PyCUDA"

    def __init__(self, module: Any) -> None:
        found = alive((module.Context, *(getattr(module, kind) for kind in KINDS if hasattr(module, kind))))
        self._pools = [each for each in found if not isinstance(each, module.Context)]
        self._is_elsewhere = _is_elsewhere(module.Context, found)

    @classmethod
    def find(cls) -> Iterator[PyCuda]:
        module = loaded("pycuda._driver")
        if module is not None:
            yield cls(module)

    def may_collect(self) -> bool:
        return not self._is_elsewhere

    def measure(self) -> Iterator[Line]:
        for pool in self._pools:
            held, used = getattr(pool, "managed_bytes", None), getattr(pool, "active_bytes", None)
            memory = PINNED if "PageLocked" in type(pool).__name__ else DEVICE
            yield self.line(memory, None, held, None if held is None or used is None else held - used)

    def release(self) -> Iterator[str]:
        if self._is_elsewhere:
            yield ELSEWHERE
            return
        for pool in self._pools:
            pool.free_held()
        tools = loaded("pycuda.tools")
        if tools is not None:
            tools.clear_context_caches()
        yield from ()


def _is_elsewhere(kind: Any, found: list[Any]) -> bool:
    """Whether some of *found* may belong to a context that this thread is not in."""
    current = kind.get_current()
    if current is None:
        return bool(found)
    return any(each.handle != current.handle for each in found if isinstance(each, kind))
