"""Hold memory of GPUs until standard input ends: all but so much of it, or filled with what stdin brings.

    device_memory ballast LEFT_NBYTES PARENT              prints one JSON line
    device_memory fill DEVICE BLOCKS BLOCK_NBYTES         prints how many bytes were found there

The ballast is plain device memory, never touched: a program that finds too little free gets the error that a
smaller card would give. What is filled is the first half of a remanence test between processes. The memory
returns with this process; the ballast's ends when its parent does, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from . import end_with_parent
from .libcuda import device_uuid, load

# The driver hands out device memory in pages of this size.
GRANULE = 2 << 20
_OUT_OF_MEMORY = 2


class CallFailed(Exception):
    """A driver call that was needed and failed."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} answered {code}")
        self.code = code


def must(name: str, code: int) -> None:
    if code:
        raise CallFailed(name, code)


def enter(cuda: Any, ordinal: int) -> None:
    """Make the device's primary context this thread's."""
    context = c_void_p()
    must("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(ordinal)))
    must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))


def hold(cuda: Any, ordinal: int, left: int) -> dict[str, Any]:
    """Take memory of one device until *left* bytes are free there."""
    enter(cuda, ordinal)
    uuid = (ctypes.c_char * 16)()
    must("cuDeviceGetUuid", cuda.cuDeviceGetUuid_v2(byref(uuid), c_int(ordinal)))
    free, total = memory(cuda)
    held, portion = 0, max(0, free - left) // GRANULE * GRANULE
    while portion and free > left:
        address = c_uint64()
        code = cuda.cuMemAlloc_v2(byref(address), c_size_t(portion))
        if code == _OUT_OF_MEMORY:
            portion = portion // 2 // GRANULE * GRANULE
            continue
        must("cuMemAlloc", code)
        held += portion
        free, _ = memory(cuda)
        portion = min(portion, max(0, free - left) // GRANULE * GRANULE)
    return {"device": ordinal, "uuid": device_uuid(bytes(uuid)), "total": total, "free": free, "held": held}


def memory(cuda: Any) -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo", cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value


def hold_all(left: int) -> dict[str, Any]:
    try:
        cuda, count = load(), c_int()
        must("cuInit", cuda.cuInit(0))
        must("cuDeviceGetCount", cuda.cuDeviceGetCount(byref(count)))
        return {"devices": [hold(cuda, ordinal, left) for ordinal in range(count.value)]}
    except (OSError, CallFailed) as error:
        return {"error": str(error)}


def fill(device: int, blocks: int, pattern: bytes) -> int:
    """How many bytes of *pattern* are found after writing it *blocks* times; it stays there."""
    cuda = load()
    must("cuInit", cuda.cuInit(0))
    enter(cuda, device)
    nbytes, start, found = len(pattern), c_uint64(), 0
    must("cuMemAlloc", cuda.cuMemAlloc_v2(byref(start), c_size_t(blocks * nbytes)))
    seen = ctypes.create_string_buffer(nbytes)
    for number in range(blocks):
        at = c_uint64(start.value + number * nbytes)
        must("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(at, pattern, c_size_t(nbytes)))
        must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(seen, at, c_size_t(nbytes)))
        found += nbytes if seen.raw == pattern else 0
    return found


def main() -> None:
    which, *figures = sys.argv[1], *(int(word) for word in sys.argv[2:])
    if which == "ballast":
        left, parent = figures
        end_with_parent(parent)
        print(json.dumps(hold_all(left)), flush=True)
    else:
        device, blocks, nbytes = figures
        try:
            print(fill(device, blocks, sys.stdin.buffer.read(nbytes)), flush=True)
        except CallFailed as error:
            sys.exit(f"the driver answered {error.code}")
    sys.stdin.buffer.read()  # until its parent kills this process, or is gone
    os._exit(0)
