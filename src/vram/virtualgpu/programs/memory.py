"""One process and its memory: plain, managed, small pieces, what a free waits for, old bytes, misuse."""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref, c_uint, c_uint64

import driver
import protocol

WORK_S = 1.0


def plain() -> None:
    """Allocate, and free when told to."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    before, total = driver.free_and_total()
    pointer = driver.alloc(nbytes)
    protocol.stage("allocated", nbytes=nbytes, free_before=before, total=total)
    driver.free(pointer)
    protocol.stage("freed", free_before=before, free=driver.free_and_total()[0])


def managed() -> None:
    """Hold managed memory that the host touches, then the device, then the host again."""
    nbytes = protocol.size_argument(64 * protocol.MIB)
    driver.context()
    pointer = driver.alloc_managed(nbytes)
    ctypes.memset(pointer, 0x5A, nbytes)
    protocol.stage("allocated", nbytes=nbytes)
    driver.fill(pointer, 0xA5, nbytes)
    protocol.stage("touched by the device", nbytes=nbytes)
    ctypes.memset(pointer, 0x5A, nbytes)
    protocol.stage("touched by the host", nbytes=nbytes)
    driver.free(pointer)
    protocol.stage("freed")


def granularity() -> None:
    """What small allocations really cost: each stage allocates the size that it is told."""
    driver.context()
    free, total = driver.free_and_total()
    protocol.ready("context", free=free, total=total, vmm_granularity=driver.granularity())
    while True:
        nbytes = int(protocol.wait())
        before = driver.free_and_total()[0]
        driver.alloc(nbytes)
        protocol.ready("allocated", nbytes=nbytes, taken=before - driver.free_and_total()[0])


def waiting_free() -> None:
    """Free behind work that was queued before, and measure how long the free takes."""
    driver.context()
    pointer = driver.alloc(protocol.size_argument(64 * protocol.MIB))
    stream = driver.new_stream()
    # The queued work is a host function that takes its time: it needs no kernel.
    work = driver.HOST_FUNCTION(lambda _: time.sleep(WORK_S))
    queued_at = time.monotonic()
    driver.call("cuLaunchHostFunc", stream, work, None)
    queued_s = time.monotonic() - queued_at
    driver.free(pointer)
    protocol.stage("freed", queued_s=queued_s, freed_s=time.monotonic() - queued_at)


def old_bytes() -> None:
    """Does a fresh plain allocation show what was there before, in one process and across two?"""
    nbytes = protocol.size_argument(protocol.GIB)
    protocol.ForkedWorker(_fill_and_wait, nbytes).kill()
    driver.context()
    pointer = driver.alloc(nbytes)
    across = driver.count_nonzero(pointer, nbytes)
    driver.fill(pointer, driver.OLD_BYTE, nbytes)
    control = driver.count_nonzero(pointer, nbytes)
    driver.free(pointer)
    inside = driver.count_nonzero(driver.alloc(nbytes), nbytes)
    protocol.stage("read", nbytes=nbytes, across=across, inside=inside, control=control)


def _fill_and_wait(nbytes: int) -> protocol.Turns:
    """Fill memory that is never freed."""
    driver.context()
    driver.fill(driver.alloc(nbytes), driver.OLD_BYTE, nbytes)
    yield None


def misuse() -> None:
    """What the driver answers to misuse."""
    driver.init()
    codes = {"alloc without a context": driver.alloc_code(protocol.MIB)}
    driver.context()
    for group in (_free_codes, _alloc_codes, _ipc_codes, _vmm_codes):
        try:
            codes |= group()
        except driver.CudaError as error:
            codes[f"{group.__name__}: {error}"] = error.code
    protocol.stage("asked", codes=codes)


def _free_codes() -> dict[str, int]:
    pointer = driver.alloc(2 * protocol.MIB)
    middle, first, second = (driver.free_code(at) for at in (pointer + 4096, pointer, pointer))
    return {
        "free of the middle": middle,
        "first free": first,
        "double free": second,
        "free of a bad pointer": driver.free_code(0xDEAD0000),
        "free of null": driver.free_code(0),
    }


def _alloc_codes() -> dict[str, int]:
    return {"alloc of 1 TiB": driver.alloc_code(2**40), "alloc of 0 bytes": driver.alloc_code(0)}


def _ipc_codes() -> dict[str, int]:
    handle = driver.IpcHandle.from_buffer_copy(bytes.fromhex(driver.ipc_handle(driver.alloc(protocol.MIB))))
    opened = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), handle, c_uint(1))
    garbage = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), driver.IpcHandle(), c_uint(1))
    return {"IPC open in the same process": opened, "IPC open of garbage": garbage}


def _vmm_codes() -> dict[str, int]:
    # No release of a handle that never was: the real driver takes it for an address and crashes.
    step = driver.granularity()
    handle = driver.create(step)
    address = driver.reserve(4 * step)
    null = os.open("/dev/null", os.O_RDWR)
    return {
        "map larger than the handle": driver.map_code(address, 2 * step, handle),
        "map of half the handle's step": driver.map_code(address, step // 2, handle),
        "import of a foreign descriptor": driver.import_code(null)[0],
        "import of a closed descriptor": driver.import_code(999)[0],
        "create of an odd size": driver.create_code(step + 1),
    }


if __name__ == "__main__":
    protocol.main(plain, managed, granularity, waiting_free, old_bytes, misuse)
