"""A bound on what a scope may gain, handed to the frameworks that can hold one themselves.

PyTorch and CuPy refuse an allocation that would pass their cap, so there the growth stops
before it happens. The caps hold for the scope alone: what was set before is set again after it.
JAX fixes its own when it starts; allocations outside frameworks know no cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from vram.payloads.trim.driver import driver
from vram.payloads.trim.framework import loaded
from vram.payloads.trim.frameworks.arrays import each_device

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
