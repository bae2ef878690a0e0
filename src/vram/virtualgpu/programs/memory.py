"""One process and its memory: plain, managed, small pieces, what a free waits for, old bytes."""

from __future__ import annotations

import ctypes
import time

import driver
import protocol

WORK_S = 1.0


def plain() -> None:
    """Allocate, and free when told to."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    before, total = driver.free_and_total()
    pointer = driver.alloc(nbytes)
    protocol.ready("allocated", nbytes=nbytes, free_before=before, total=total)
    protocol.wait()
    driver.free(pointer)
    protocol.ready("freed", free_before=before, free=driver.free_and_total()[0])
    protocol.wait()


def managed() -> None:
    """Hold managed memory that the host touches, then the device, then the host again."""
    nbytes = protocol.size_argument(64 * protocol.MIB)
    driver.context()
    pointer = driver.alloc_managed(nbytes)
    ctypes.memset(pointer, 0x5A, nbytes)
    protocol.ready("allocated", nbytes=nbytes)
    protocol.wait()
    driver.fill(pointer, 0xA5, nbytes)
    protocol.ready("touched by the device", nbytes=nbytes)
    protocol.wait()
    ctypes.memset(pointer, 0x5A, nbytes)
    protocol.ready("touched by the host", nbytes=nbytes)
    protocol.wait()
    driver.free(pointer)
    protocol.ready("freed")
    protocol.wait()


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
    protocol.ready("freed", queued_s=queued_s, freed_s=time.monotonic() - queued_at)
    protocol.wait()


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
    protocol.ready("read", nbytes=nbytes, across=across, inside=inside, control=control)
    protocol.wait()


def _fill_and_wait(nbytes: int) -> protocol.Turns:
    """Fill memory that nobody frees."""
    driver.context()
    driver.fill(driver.alloc(nbytes), driver.OLD_BYTE, nbytes)
    yield None


if __name__ == "__main__":
    protocol.main(plain, managed, granularity, waiting_free, old_bytes)
