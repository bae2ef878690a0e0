"""A free waits for the work that was queued before it."""

from __future__ import annotations

import ctypes
import time

import driver
import stage

WORK_S = 1.0
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def scene() -> None:
    driver.context()
    pointer = driver.alloc(stage.size_argument(64 * stage.MIB))
    stream = ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    # The queued work is a host function that takes its time: it needs no kernel.
    work = HOST_FUNCTION(lambda _: time.sleep(WORK_S))
    queued_at = time.monotonic()
    driver.call("cuLaunchHostFunc", stream, work, None)
    queued_s = time.monotonic() - queued_at
    driver.free(pointer)
    stage.ready("freed", queued_s=queued_s, freed_s=time.monotonic() - queued_at)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)
