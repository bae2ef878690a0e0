"""Ten ways to keep GPU memory by accident, acted out with one framework; a program of its own.

    python -m tests.guard.leaks numba 67108864

For each way it prints one JSON line: how the array's holder is named, and how many bytes above
the beginning the process holds when it has leaked, after ``vram.flush()``, and when the holder
itself has released it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import vram
from vram.guard.memory import device_memory

Make = Callable[[int], Any]
Way = Callable[[Make, int], Iterator[None]]

CACHE: dict[str, Any] = {}
CALLBACKS: list[Callable[[], object]] = []


# ---- arrays of one framework; every one is warm when it is returned ----


def numba() -> Make:
    import numpy as np
    from numba import cuda

    return lambda nbytes: cuda.device_array(nbytes // 4, dtype=np.float32)


def cuda_core() -> Make:
    from cuda.core import Device

    def make(nbytes: int) -> Any:
        device = Device(0)
        device.set_current()  # for this thread
        return device.allocate(nbytes, stream=device.default_stream)

    return make


def buffer() -> Make:
    return lambda nbytes: vram.Buffer(nbytes)


def pycuda() -> Make:
    import pycuda.autoprimaryctx  # noqa: F401
    from pycuda import driver

    def make(nbytes: int) -> Any:
        if driver.Context.get_current() is not None:
            return driver.mem_alloc(nbytes)
        # In another thread. PyCUDA aborts a thread that ends with a context, and frees in it all the same.
        context = driver.Device(0).retain_primary_context()
        context.push()
        try:
            return driver.mem_alloc(nbytes)
        finally:
            context.pop()

    return make


def torch() -> Make:
    import torch

    return lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def cupy() -> Make:
    import cupy

    return lambda nbytes: cupy.empty(nbytes, dtype=cupy.uint8)


def jax() -> Make:
    import jax

    return lambda nbytes: jax.device_put(jax.numpy.zeros(nbytes, dtype="uint8")).block_until_ready()


FRAMEWORKS = {make.__name__: make for make in (numba, cuda_core, buffer, pycuda, torch, cupy, jax)}


# ---- the ways: each leaks, and yields until it is to release ----


def a_global(make: Make, nbytes: int) -> Iterator[None]:
    CACHE["x"] = make(nbytes)
    yield
    CACHE.clear()


def a_cycle(make: Make, nbytes: int) -> Iterator[None]:
    class Node:
        pass

    node = Node()
    node.itself, node.array = node, make(nbytes)  # type: ignore[attr-defined]
    gc.disable()  # it would find the cycle whenever its count is full
    del node
    yield
    gc.enable()


def fail(make: Make, nbytes: int) -> None:
    out = make(nbytes)
    raise ValueError(f"the step failed with {type(out).__name__}")


def a_traceback(make: Make, nbytes: int) -> Iterator[None]:
    try:
        fail(make, nbytes)
    except ValueError as error:
        # What an interactive interpreter does with every exception that reaches the prompt.
        sys.last_value = error
    yield


def a_closure(make: Make, nbytes: int) -> Iterator[None]:
    def callback_on(kept: Any) -> Callable[[], object]:
        def callback() -> object:
            return kept

        return callback

    CALLBACKS.append(callback_on(make(nbytes)))
    yield
    CALLBACKS.clear()


class Layer:
    """Keeps hooks as PyTorch's modules do, for frameworks that have none."""

    def __init__(self) -> None:
        self._forward_hooks: dict[int, Callable[..., object]] = {}

    def register_forward_hook(self, hook: Callable[..., object]) -> None:
        self._forward_hooks[len(self._forward_hooks)] = hook


MODEL: list[Any] = []


def a_hook(make: Make, nbytes: int) -> Iterator[None]:
    real = sys.modules.get("torch")
    MODEL[:] = [real.nn.Linear(2, 2) if real else Layer() for _ in range(6)]

    def register(kept: Any) -> None:
        def hook(*inputs: object) -> None:
            kept  # noqa: B018

        MODEL[4].register_forward_hook(hook)

    register(make(nbytes))
    yield
    MODEL.clear()


def a_thread(make: Make, nbytes: int) -> Iterator[None]:
    ready, end = threading.Event(), threading.Event()

    def load() -> None:
        try:
            batch = make(nbytes)
        finally:
            ready.set()
        end.wait()
        del batch

    thread = threading.Thread(target=load, name="loader")
    thread.start()
    ready.wait()
    yield
    end.set()
    thread.join()


def a_generator(make: Make, nbytes: int) -> Iterator[None]:
    def batches() -> Iterator[int]:
        batch = make(nbytes)
        yield 1
        del batch

    CACHE["batches"] = batches()
    next(CACHE["batches"])
    yield
    CACHE.clear()


def an_output(make: Make, nbytes: int) -> Iterator[None]:
    """The prompt of an interpreter keeps the last value that it has shown."""
    import builtins

    builtins._ = make(nbytes)  # type: ignore[attr-defined]
    yield
    del builtins._  # type: ignore[attr-defined]


def a_native_cache(make: Make, nbytes: int) -> Iterator[None]:
    """Freed into a cache that no Python object shows: the framework's own, or the driver's pool."""
    kept = make(nbytes)
    _free_into_pool(nbytes)
    del kept
    gc.collect()
    yield


def _free_into_pool(nbytes: int) -> None:
    library, pool, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    library.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
    library.cuMemPoolSetAttribute(pool, 4, ctypes.byref(ctypes.c_uint64(2**64 - 1)))
    assert library.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(nbytes), None) == 0
    assert library.cuMemFreeAsync(pointer, None) == 0
    assert library.cuStreamSynchronize(None) == 0


def outside_frameworks(make: Make, nbytes: int) -> Iterator[None]:
    library, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    assert library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
    yield
    assert library.cuMemFree_v2(pointer) == 0


WAYS: tuple[Way, ...] = (
    a_global,
    a_cycle,
    a_traceback,
    a_closure,
    a_hook,
    a_thread,
    a_generator,
    an_output,
    a_native_cache,
    outside_frameworks,
)


# ---- acting and telling ----


def held() -> int:
    memory = device_memory(0)
    assert memory is not None
    return memory.used or memory.total - memory.free


def act(way: Way, make: Make, nbytes: int) -> dict[str, Any]:
    before = vram.flush()
    start = held()
    steps = way(make, nbytes)
    next(steps)
    leaked = held() - start
    names = [each.holder.text for each in vram.live() if each.nbytes >= nbytes]
    first = vram.flush()
    flushed = held() - start
    next(steps, None)
    again = vram.flush()
    return {
        "way": way.__name__,
        "names": names,
        "leaked": leaked,
        "flushed": flushed,
        "released": held() - start,
        "beside": (first.outside or 0) - (before.outside or 0),
        "still_alive": [each.holder.text for each in first.live if each.nbytes >= nbytes],
        "left": len([each for each in again.live if each.nbytes >= nbytes]),
        "report": repr(first),
        "took_s": first.took_s,
    }


def enter_primary_context() -> None:
    """Raw calls need a current context, which not every framework leaves behind."""
    library, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0


def main() -> None:
    make, nbytes = FRAMEWORKS[sys.argv[1]](), int(sys.argv[2])
    first = make(nbytes)
    del first
    enter_primary_context()
    for way in WAYS:
        print(json.dumps(act(way, make, nbytes)), flush=True)


if __name__ == "__main__":
    main()
