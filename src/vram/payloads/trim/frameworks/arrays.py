"""The caches of CuPy, Numba and PyCUDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, PINNED, Framework, alive, loaded

if TYPE_CHECKING:
    from ..framework import Line


def each_device(cupy: Any) -> Iterator[int]:
    """Every device that CuPy can work on, each the current one while it is yielded.

    Its Device sets the primary context when it is left. In a context of the program's own that would
    take the thread out of it, and make a primary one: there only that context's device is yielded.
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


class Numba(Framework):
    """Only contexts that it has made already: its list of GPUs would wake the driver."""

    name = "Numba"

    def __init__(self, contexts: dict[int, Any]) -> None:
        self._contexts = contexts

    @classmethod
    def find(cls) -> Iterator[Numba]:
        known = getattr(getattr(loaded("numba.cuda.cudadrv.driver"), "driver", None), "devices", None) or {}
        contexts = {int(number): getattr(device, "primary_context", None) for number, device in known.items()}
        made = {number: context for number, context in contexts.items() if context is not None}
        if made:
            yield cls(made)

    def _pending(self) -> Iterator[tuple[int, Any]]:
        """Memory waits with the memory manager; modules, streams and events wait with the context."""
        for number, context in self._contexts.items():
            for owner in (getattr(context, "memory_manager", None), context):
                pending = getattr(owner, "deallocations", None)
                if pending is not None:
                    yield number, pending

    def measure(self) -> Iterator[Line]:
        for number, pending in self._pending():
            size = getattr(pending, "_size", None)
            yield self.line(DEVICE, number, size, size)

    def release(self) -> Iterator[str]:
        for number, pending in self._pending():
            with driver.inside(number) as entered:
                if entered:
                    pending.clear()
        yield from ()


_POOL_TYPES = ("DeviceMemoryPool", "PageLockedMemoryPool")
_OTHER_THREAD = (
    "PyCUDA can free memory only in the thread of its context: its pools were not released, and no"
    " garbage was collected. Call vram.flush() in that thread"
)


class PyCuda(Framework):
    """Pools are found among the live objects.

    Asked to free in another thread than its context's, PyCUDA warns, frees nothing and forgets what it was
    to free, so that the memory is lost until the process ends (seen with 2026.1). That holds for pools and
    for arrays whose last reference goes.
    """

    name = "PyCUDA"

    def __init__(self, module: Any) -> None:
        found = alive(
            (module.Context, *(getattr(module, kind) for kind in _POOL_TYPES if hasattr(module, kind)))
        )
        self._pools = [each for each in found if not isinstance(each, module.Context)]
        self._is_other_thread = _is_other_thread(module.Context, found)

    @classmethod
    def find(cls) -> Iterator[PyCuda]:
        module = loaded("pycuda._driver")
        if module is not None:
            yield cls(module)

    def may_collect(self) -> bool:
        return not self._is_other_thread

    def measure(self) -> Iterator[Line]:
        for pool in self._pools:
            held, used = getattr(pool, "managed_bytes", None), getattr(pool, "active_bytes", None)
            memory = PINNED if "PageLocked" in type(pool).__name__ else DEVICE
            yield self.line(memory, None, held, None if held is None or used is None else held - used)

    def release(self) -> Iterator[str]:
        if self._is_other_thread:
            yield _OTHER_THREAD
            return
        for pool in self._pools:
            pool.free_held()
        tools = loaded("pycuda.tools")
        if tools is not None:
            tools.clear_context_caches()
        yield from ()


def _is_other_thread(kind: Any, found: list[Any]) -> bool:
    """Whether some of *found* may belong to a context that this thread is not in."""
    current = kind.get_current()
    if current is None:
        return bool(found)
    return any(each.handle != current.handle for each in found if isinstance(each, kind))
