"""Erase GPU memory: one array with ``vram.scrub``, and unused memory in caches with ``zero_on_exit``.

Pools and PyTorch's cache give old bytes to the next owner inside the process. Other frameworks' caches are
released to the driver, which zeroes plain memory before it hands it out (measured on an H200, driver 580).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint64
from typing import Any

from vram.errors import Refused
from vram.guard.borrowed import erase, view_of
from vram.guard.buffer import Buffer
from vram.guard.driver import driver, is_capturing_here
from vram.guard.memory import unreachable_devices
from vram.payloads.trim.driver import driver as pools
from vram.payloads.trim.framework import loaded
from vram.units import MIB, size

# ---- one array ----

CAPTURING = "a CUDA graph is being captured: nothing was erased"


def scrub(thing: Any) -> int:
    """Set every byte of *thing*'s elements to zero; returns how many. Done when it returns.

    Of a view of a larger array only the view's elements are erased. Its library is not involved:
    gradients and read-only flags are ignored.
    """
    if is_capturing_here():  # waiting for the device would end the capture with an error
        raise Refused(CAPTURING, hint="scrub before or after it")
    if isinstance(thing, Buffer):
        thing._erase()
        return thing.nbytes
    view = view_of(thing)
    if view.layout.nbytes and view.pointer:
        erase(driver(), view.pointer, view.device[1], view.layout)
    return view.layout.nbytes


# ---- caches ----

MIN_NBYTES = 2 * MIB  # a pool grows by this much at a time
SMALL_POOL = 1 * MIB  # PyTorch allocates what is larger from another pool


def erase_caches() -> list[str]:
    """Erase what is unused now; return notes on what could not be erased. Never raises."""
    if is_capturing_here():
        return [CAPTURING]
    gc.collect()
    parts = {
        "PyTorch's cache": _torch,
        "JAX's pool": _jax,
        "other frameworks' caches": _release_others,
        "the driver's pools": _pools,
    }
    return [note for name, part in parts.items() for note in _attempt(name, part)]


def _attempt(name: str, part: Callable[[], Iterator[str]]) -> Iterator[str]:
    """A failure becomes a note: the scope's own error, perhaps of the same device, must not be replaced."""
    try:
        yield from part()
    except Exception as error:
        yield f"{name} could not all be erased: {str(error).partition(chr(10))[0] or type(error).__name__}"


def _release_others() -> Iterator[str]:
    from vram.payloads.trim.frameworks import FRAMEWORKS

    ours = ("PyTorch", "JAX", "driver pools")
    for each in (found for kind in FRAMEWORKS if kind.name not in ours for found in kind.find()):
        for _ in each.release():
            pass
    yield from ()


# ---- the driver's pools ----


def _pools() -> Iterator[str]:
    for device in pools.devices():
        for pool in pools.pools(device):
            yield from _pool(device, pool)
    for device in unreachable_devices():
        yield f"GPU {device}: its pools were not erased, because its context is not current in this thread"


def _pool(device: int, pool: int) -> Iterator[str]:
    """Fill the unused part of the pool with allocations, as large as fit without growing the pool."""
    cuda = driver()
    with pools.inside(device) as entered:
        if not entered:
            return
        cuda.must("cuCtxSynchronize")
        taken = list(_fill(cuda, pool))
        try:
            for pointer, nbytes in taken:
                cuda.must("cuMemsetD8Async", pointer, 0, nbytes, None)
        finally:
            for pointer, _ in taken:
                cuda.must("cuMemFreeAsync", pointer, None)
        cuda.must("cuCtxSynchronize")
    reserved, used = _pool_bytes(pool)
    left = reserved - used - sum(nbytes for _, nbytes in taken)
    if left > 0:
        yield f"{size(left)} of a driver pool's unused memory is in pieces too small to be erased"


def _pool_bytes(pool: int) -> tuple[int, int]:
    """Reserved and used bytes of *pool*; zero where the driver does not say."""
    return pools.pool_bytes(pool) or (0, 0)


def _fill(cuda: Any, pool: int) -> Iterator[tuple[int, int]]:
    reserved, used = _pool_bytes(pool)
    step = reserved - used
    while step >= MIN_NBYTES:
        pointer = c_uint64()
        if cuda.cuMemAllocFromPoolAsync(byref(pointer), step, pool, None):
            step //= 2
            continue
        if _pool_bytes(pool)[0] > reserved:  # the pool grew for it: fresh memory needs no erasing
            cuda.must("cuMemFreeAsync", pointer.value, None)
            cuda.must("cuCtxSynchronize")
            reserved, _ = _pool_bytes(pool)
            step //= 2
            continue
        yield pointer.value, step
        reserved, used = _pool_bytes(pool)
        step = min(step, reserved - used)


# ---- PyTorch ----


def _torch() -> Iterator[str]:
    torch, cuda = loaded("torch"), loaded("torch.cuda")
    if torch is None or cuda is None or not cuda.is_initialized():
        return
    if getattr(cuda, "get_allocator_backend", lambda: "native")() != "native":
        return  # its cache is the driver's pool
    cuda.synchronize()
    blocks = [block for segment in cuda.memory_snapshot() for block in _unused_blocks(segment)]
    missed, fillings = 0, []
    # The largest first: each finds the block of its own size, and does not split a larger one.
    for nbytes, device, stream in sorted(blocks, reverse=True):
        with cuda.stream(_stream(cuda, stream, device)):
            before = cuda.memory_reserved(device)
            filling = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{device}")
            if cuda.memory_reserved(device) > before:
                missed += nbytes
            else:
                fillings.append(filling.zero_())
            del filling
    cuda.synchronize()
    fillings.clear()
    if missed:
        yield f"{size(missed)} of PyTorch's cache could not be erased"


def _stream(cuda: Any, handle: int, device: int) -> Any:
    """PyTorch takes the handle 0 as a request for a new stream."""
    return cuda.ExternalStream(handle, device=device) if handle else cuda.default_stream(device)


def _unused_blocks(segment: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    is_small = segment.get("segment_type") == "small"
    for block in segment["blocks"]:
        left = block["size"] if block["state"] == "inactive" else 0
        while left:
            part = min(left, SMALL_POOL) if is_small else left
            yield part, segment["device"], segment["stream"]
            left -= part


def _jax() -> Iterator[str]:
    if getattr(loaded("jax._src.xla_bridge"), "_backends", None):
        yield "JAX's pool was not erased: its unused memory cannot be allocated"
