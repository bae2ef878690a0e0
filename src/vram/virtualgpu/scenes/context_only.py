"""A process wakes the driver up, makes a context, makes a second one, and gives both back."""

from __future__ import annotations

from ctypes import byref, c_uint, c_uint64, c_void_p

import driver
import stage


def second_context() -> c_void_p:
    """Create a context beside the primary one; the oldest form of the call takes no extras."""
    handle = c_void_p()
    driver.call("cuCtxCreate_v2", byref(handle), c_uint(0), 0)
    return handle


def scene() -> None:
    driver.init()
    stage.ready("init")
    stage.wait()
    primary = driver.context()
    free, total = driver.free_and_total()
    freed_nothing = driver.code("cuMemFree_v2", c_uint64(0))
    stage.ready("context", free=free, total=total, free_of_null=freed_nothing)
    stage.wait()
    handle = second_context()
    stage.ready("second")
    stage.wait()
    driver.call("cuCtxDestroy_v2", handle)
    driver.use(primary)
    stage.ready("one again")
    stage.wait()
    driver.call("cuDevicePrimaryCtxRelease_v2", 0)
    stage.ready("none")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)
