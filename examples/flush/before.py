"""Free it, erase it, mind the streams: by hand, each of the three goes wrong once.

    vram virtual -- python examples/flush/before.py

Written as many programs are, with raw pointers from cuda.bindings. after.py does the same work.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as cuda

MIB = 1024**2


def must(answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)
    return values[0] if values else None


def in_use() -> int:
    must(cuda.cuCtxSynchronize())
    code, free, total = cuda.cuMemGetInfo()
    must((code,))
    return int(total - free)


def explicit_free() -> None:
    """An exception on the way skips the free."""
    pointer = must(cuda.cuMemAlloc(64 * MIB))
    load_batch()
    must(cuda.cuMemFree(pointer))


def load_batch() -> None:
    raise ValueError("a bad batch")


def secret_in_a_pool() -> None:
    pointer = must(cuda.cuMemAllocAsync(32 * MIB, 0))
    must(cuda.cuMemcpyHtoD(pointer, b"password", 8))
    must(cuda.cuMemFreeAsync(pointer, 0))


def next_owner() -> bytes:
    pointer, seen = must(cuda.cuMemAllocAsync(32 * MIB, 0)), bytearray(8)
    must(cuda.cuMemcpyDtoH(seen, pointer, 8))
    must(cuda.cuMemFreeAsync(pointer, 0))
    return bytes(seen)


def many_streams() -> None:
    """Eight pieces on four streams; the list that frees them is one short."""
    streams = [must(cuda.cuStreamCreate(0)) for _ in range(4)]
    pointers = [must(cuda.cuMemAlloc(8 * MIB)) for _ in range(8)]
    for number, pointer in enumerate(pointers):
        must(cuda.cuMemsetD8Async(pointer, number, 8 * MIB, streams[number % 4]))
    for pointer in pointers[:-1]:
        must(cuda.cuMemFree(pointer))
    for stream in streams:
        must(cuda.cuStreamDestroy(stream))


def main() -> None:
    must(cuda.cuInit(0))
    must(cuda.cuCtxSetCurrent(must(cuda.cuDevicePrimaryCtxRetain(0))))
    pool = must(cuda.cuDeviceGetDefaultMemPool(0))
    keep = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    must(cuda.cuMemPoolSetAttribute(pool, keep, cuda.cuuint64_t(2**63)))

    start = in_use()
    try:
        explicit_free()
    except ValueError as error:
        print(f"{error}: {(in_use() - start) // MIB} MiB stay in use")

    secret_in_a_pool()
    print(f"the next owner of the pool's memory reads {next_owner()!r}")

    start = in_use()
    many_streams()
    print(f"after all streams ended {(in_use() - start) // MIB} MiB stay in use, 2 of them for streams")


main()
