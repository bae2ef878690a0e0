"""A process without a context takes a keeper's descriptor and measures the allocation behind it.

Arguments: the keeper's pid and its descriptor. The size is the largest range that the
imported handle can be mapped to; the driver refuses to map beyond an allocation's end.
"""

from __future__ import annotations

import ctypes
import os
import sys

import driver
import sharing
import stage

SYS_PIDFD_GETFD = 438
LARGEST = 2**40


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


class Measure:
    """Finds an imported allocation's size, counting the tries and the driver's refusals."""

    def __init__(self, handle: int, step: int) -> None:
        self.handle, self.step = handle, step
        self.tries = 0
        self.refusals: set[int] = set()

    def fits(self, steps: int) -> bool:
        """Tell whether so much can be mapped; unmap it again."""
        self.tries += 1
        nbytes = steps * self.step
        address = sharing.reserve(nbytes)
        try:
            answer = sharing.map_code(address, nbytes, self.handle)
            if answer == 0:
                sharing.unmap(address, nbytes)
            else:
                self.refusals.add(answer)
            return answer == 0
        finally:
            sharing.unreserve(address, nbytes)

    def nbytes(self) -> int:
        """Double until it no longer fits, then halve the gap."""
        above = 1
        while above * self.step <= LARGEST and self.fits(above):
            above *= 2
        below = above // 2
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if self.fits(middle) else (below, middle)
        return below * self.step


def scene() -> None:
    driver.init()
    descriptor = copy_descriptor(int(sys.argv[1]), int(sys.argv[2]))
    answer, handle = sharing.import_code(descriptor)
    os.close(descriptor)
    if answer:
        stage.ready("refused", import_code=answer)
        stage.wait()
        return
    stage.ready("imported", import_code=answer)
    stage.wait()
    measure = Measure(handle, sharing.granularity())
    nbytes = measure.nbytes()
    stage.ready("measured", nbytes=nbytes, tries=measure.tries, refusals=sorted(measure.refusals))
    stage.wait()
    sharing.release(handle)
    stage.ready("released")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)
