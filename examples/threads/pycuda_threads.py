"""The three programs with PyCUDA: raw pointers, explicit frees, and its own owner objects.

    vram virtual -- python examples/threads/pycuda_threads.py

PyCUDA's `mem_alloc` returns an owner object: when the thread's variable goes, it frees. What
leaks is what is taken away from its owner: an address that was released, or kept by somebody.
A thread must enter the context itself; PyCUDA does not do that for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pycuda.driver as cuda

import vram

MIB = 1024**2


def raw(size: int) -> None:
    kept.append(cuda.mem_alloc(size))  # the owner outlives its thread


def freed(size: int) -> None:
    memory = cuda.mem_alloc(size)
    memory.free()


def owned(size: int) -> None:
    memory = cuda.mem_alloc(size)  # goes with this variable
    assert int(memory)


kept: list[Any] = []


def inside(context: Any, work: Callable[[int], None]) -> None:
    context.push()
    try:
        work(4 * MIB)
    finally:
        context.pop()


def main() -> None:
    cuda.init()
    context = cuda.Device(0).make_context()
    try:
        for words, work in (
            ("raw pointers", raw),
            ("pointers that were freed", freed),
            ("owner objects", owned),
        ):
            with vram.scope(words, leak="report") as s:
                threads = [threading.Thread(target=inside, args=(context, work)) for _ in range(5)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            print(f"{words}: {s.leak.nbytes // MIB if s.leak else 0} MiB stay in use")
    finally:
        kept.clear()
        context.pop()


main()
