"""What the driver answers to misuse."""

from __future__ import annotations

import os
from ctypes import byref, c_size_t, c_uint, c_uint64

import driver
import sharing
import stage


def alloc_code(nbytes: int) -> int:
    return driver.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(nbytes))


def free_code(pointer: int) -> int:
    return driver.code("cuMemFree_v2", c_uint64(pointer))


def create_code(nbytes: int) -> int:
    wish = byref(sharing.pinned_on_device())
    return driver.code("cuMemCreate", byref(c_uint64()), c_size_t(nbytes), wish, c_uint64(0))


def free_codes() -> dict[str, int]:
    pointer = driver.alloc(2 * stage.MIB)
    middle, first, second = (free_code(at) for at in (pointer + 4096, pointer, pointer))
    return {
        "free of the middle": middle,
        "first free": first,
        "double free": second,
        "free of a bad pointer": free_code(0xDEAD0000),
        "free of null": free_code(0),
    }


def alloc_codes() -> dict[str, int]:
    return {"alloc of 1 TiB": alloc_code(2**40), "alloc of 0 bytes": alloc_code(0)}


def ipc_codes() -> dict[str, int]:
    handle = sharing.IpcHandle.from_buffer_copy(bytes.fromhex(sharing.ipc_handle(driver.alloc(stage.MIB))))
    opened = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), handle, c_uint(1))
    garbage = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), sharing.IpcHandle(), c_uint(1))
    return {"IPC open in the same process": opened, "IPC open of garbage": garbage}


def vmm_codes() -> dict[str, int]:
    # No release of a handle that never was: the real driver takes it for an address and crashes.
    step = sharing.granularity()
    handle = sharing.create(step)
    address = sharing.reserve(4 * step)
    null = os.open("/dev/null", os.O_RDWR)
    return {
        "map larger than the handle": sharing.map_code(address, 2 * step, handle),
        "map of half the handle's step": sharing.map_code(address, step // 2, handle),
        "import of a foreign descriptor": sharing.import_code(null)[0],
        "import of a closed descriptor": sharing.import_code(999)[0],
        "create of an odd size": create_code(step + 1),
    }


def scene() -> None:
    driver.init()
    codes = {"alloc without a context": alloc_code(stage.MIB)}
    driver.context()
    for group in (free_codes, alloc_codes, ipc_codes, vmm_codes):
        try:
            codes |= group()
        except driver.CudaError as error:
            codes[f"{group.__name__}: {error}"] = error.code
    stage.ready("asked", codes=codes)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)
