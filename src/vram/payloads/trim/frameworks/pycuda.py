"""PyCUDA: pools are the program's own objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..framework import DEVICE, PINNED, Framework, alive, loaded

if TYPE_CHECKING:
    from ..framework import Line

KINDS = ("DeviceMemoryPool", "PageLockedMemoryPool")


ELSEWHERE = (
    "PyCUDA's pools were left as they are: they can be emptied only in the thread of their one context "
    "(pool.free_held() there)"
)


class PyCuda(Framework):
    """Pools are found among the live objects."""

    name = "PyCUDA"

    def __init__(self, module: Any) -> None:
        self._contexts = module.Context
        self._pools = alive(tuple(getattr(module, kind) for kind in KINDS if hasattr(module, kind)))

    @classmethod
    def find(cls) -> Iterator[PyCuda]:
        module = loaded("pycuda._driver")
        if module is not None:
            yield cls(module)

    def measure(self) -> Iterator[Line]:
        for pool in self._pools:
            held, used = getattr(pool, "managed_bytes", None), getattr(pool, "active_bytes", None)
            memory = PINNED if "PageLocked" in type(pool).__name__ else DEVICE
            yield self.line(memory, None, held, None if held is None or used is None else held - used)

    def _is_in_its_thread(self) -> bool:
        """Whether this thread has PyCUDA's context, and there is no other that a pool may belong to.

        PyCUDA frees in the thread of the context alone. Asked elsewhere it warns, frees nothing and forgets
        what it was to free, so that the memory is lost (seen with 2026.1).
        """
        current = self._contexts.get_current()
        return current is not None and all(each.handle == current.handle for each in alive((self._contexts,)))

    def release(self) -> Iterator[str]:
        if not self._is_in_its_thread():
            if any(pool.held_blocks for pool in self._pools):
                yield ELSEWHERE
            return
        for pool in self._pools:
            pool.free_held()
        tools = loaded("pycuda.tools")
        if tools is not None:
            tools.clear_context_caches()
        yield from ()
