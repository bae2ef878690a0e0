"""What the driver answers to misuse."""

from __future__ import annotations

import os
from ctypes import byref, c_uint, c_uint64

import driver
import protocol


def free_codes() -> dict[str, int]:
    pointer = driver.alloc(2 * protocol.MIB)
    middle, first, second = (driver.free_code(at) for at in (pointer + 4096, pointer, pointer))
    return {
        "free of the middle": middle,
        "first free": first,
        "double free": second,
        "free of a bad pointer": driver.free_code(0xDEAD0000),
        "free of null": driver.free_code(0),
    }


def alloc_codes() -> dict[str, int]:
    return {"alloc of 1 TiB": driver.alloc_code(2**40), "alloc of 0 bytes": driver.alloc_code(0)}


def ipc_codes() -> dict[str, int]:
    handle = driver.IpcHandle.from_buffer_copy(bytes.fromhex(driver.ipc_handle(driver.alloc(protocol.MIB))))
    opened = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), handle, c_uint(1))
    garbage = driver.code("cuIpcOpenMemHandle_v2", byref(c_uint64()), driver.IpcHandle(), c_uint(1))
    return {"IPC open in the same process": opened, "IPC open of garbage": garbage}


def vmm_codes() -> dict[str, int]:
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


def misuse() -> None:
    driver.init()
    codes = {"alloc without a context": driver.alloc_code(protocol.MIB)}
    driver.context()
    for group in (free_codes, alloc_codes, ipc_codes, vmm_codes):
        try:
            codes |= group()
        except driver.CudaError as error:
            codes[f"{group.__name__}: {error}"] = error.code
    protocol.ready("asked", codes=codes)
    protocol.wait()


if __name__ == "__main__":
    protocol.main(misuse)
