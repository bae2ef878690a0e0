"""The same work as before.py, with memory that has an owner.

vram virtual -- python examples/flush/after.py
"""

from __future__ import annotations

from contextlib import ExitStack

from cuda.bindings import driver as cuda

import vram

MIB = 1024**2


def in_use() -> int:
    cuda.cuCtxSynchronize()
    _, free, total = cuda.cuMemGetInfo()
    return int(total - free)


def owned() -> None:
    """The block frees it, whatever happens inside."""
    with vram.Buffer("64MiB"):
        load_batch()


def load_batch() -> None:
    raise ValueError("a bad batch")


def secret_in_a_pool() -> None:
    """Erased, and the erasing awaited, before the pool has it back."""
    with vram.Buffer("32MiB", stream=0, zero_on_free=True) as buffer:
        buffer.write(b"password")


def next_owner() -> bytes:
    with vram.Buffer("32MiB", stream=0) as buffer:
        return buffer.read(8)


def many_streams() -> None:
    """Eight pieces on four streams; nobody keeps a list of what to free."""
    streams = [cuda.cuStreamCreate(0)[1] for _ in range(4)]
    with ExitStack() as owners:
        for number in range(8):
            buffer = owners.enter_context(vram.Buffer("8MiB"))
            cuda.cuMemsetD8Async(buffer.pointer, number, buffer.nbytes, streams[number % 4])
    for stream in streams:
        cuda.cuStreamDestroy(stream)


def main() -> None:
    cuda.cuInit(0)
    cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
    pool = cuda.cuDeviceGetDefaultMemPool(0)[1]
    keep = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    cuda.cuMemPoolSetAttribute(pool, keep, cuda.cuuint64_t(2**63))

    start = in_use()
    try:
        owned()
    except ValueError as error:
        print(f"{error}: {(in_use() - start) // MIB} MiB stay in use")

    secret_in_a_pool()
    print(f"the next owner of the pool's memory reads {next_owner()!r}")

    start = in_use()
    many_streams()
    print(f"after all streams ended {(in_use() - start) // MIB} MiB stay in use, 2 of them for streams")

    print(vram.remanence_test("8MiB"))


main()
