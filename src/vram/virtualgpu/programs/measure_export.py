"""A process without a context copies a holder's descriptor and measures the allocation behind it.

Arguments: the holder's pid and its descriptor. An import tells no size, but the driver maps
an imported handle at exactly its own size and at no other, so every size is tried in turn.
"""

from __future__ import annotations

import ctypes
import os
import sys

import driver
import protocol

SYS_PIDFD_GETFD = 438
MAX_NBYTES = 16 * protocol.GIB


def copy_descriptor(pid: int, descriptor: int) -> int:
    """Take a copy of another process's descriptor, as ptrace permission allows."""
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(copy)


class SizeSearch:
    """Finds an imported allocation's size, counting the tries and the driver's refusals."""

    def __init__(self, handle: int, step: int) -> None:
        self.handle, self.step = handle, step
        self.tries = 0
        self.refusals: set[int] = set()

    def nbytes(self) -> int:
        """Return the one size at which the handle can be mapped, 0 where there is none."""
        address = driver.reserve(MAX_NBYTES)
        try:
            sizes = range(self.step, MAX_NBYTES + 1, self.step)
            return next((size for size in sizes if self._maps(address, size)), 0)
        finally:
            driver.unreserve(address, MAX_NBYTES)

    def _maps(self, address: int, nbytes: int) -> bool:
        self.tries += 1
        answer = driver.map_code(address, nbytes, self.handle)
        if answer == 0:
            driver.unmap(address, nbytes)
        else:
            self.refusals.add(answer)
        return answer == 0


def measure_export() -> None:
    driver.init()
    descriptor = copy_descriptor(int(sys.argv[1]), int(sys.argv[2]))
    answer, handle = driver.import_code(descriptor)
    os.close(descriptor)
    if answer:
        protocol.ready("refused", import_code=answer)
        protocol.wait()
        return
    protocol.ready("imported", import_code=answer)
    protocol.wait()
    search = SizeSearch(handle, driver.granularity())
    nbytes = search.nbytes()
    protocol.ready("measured", nbytes=nbytes, tries=search.tries, refusals=sorted(search.refusals))
    protocol.wait()
    driver.release(handle)
    protocol.ready("released")
    protocol.wait()


if __name__ == "__main__":
    protocol.main(measure_export)
