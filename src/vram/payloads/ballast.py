"""Hold memory of every GPU that this process sees, so that only so much is left for others.

    ballast LEFT_NBYTES PARENT      prints one JSON line, then waits for the end of its standard input

Plain device memory, never touched: a program that finds too little free gets the error that a smaller card
would give. The memory returns with this process, which ends when its parent does, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from .libcuda import device_uuid, load

_SET_PDEATHSIG = 1
# The driver hands out device memory in pages of this size.
GRANULE = 2 << 20
_OUT_OF_MEMORY = 2


class CallFailed(Exception):
    """A driver call that was needed and failed."""


def end_with(parent: int) -> None:
    """Have the kernel kill us when *parent* ends; the pipe does the same where it cannot."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def must(name: str, code: int) -> None:
    if code:
        raise CallFailed(f"{name} answered {code}")


def hold(cuda: Any, ordinal: int, left: int) -> dict[str, Any]:
    """Take memory of one device until *left* bytes are free there."""
    context, uuid = c_void_p(), (ctypes.c_char * 16)()
    must("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(ordinal)))
    must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    must("cuDeviceGetUuid", cuda.cuDeviceGetUuid_v2(byref(uuid), c_int(ordinal)))
    free, total = memory(cuda)
    held, portion = 0, max(0, free - left) // GRANULE * GRANULE
    while portion and free > left:
        address = c_uint64()
        code = cuda.cuMemAlloc_v2(byref(address), c_size_t(portion))
        if code == 0:
            held += portion
        elif code == _OUT_OF_MEMORY:
            portion = portion // 2 // GRANULE * GRANULE
            continue
        else:
            must("cuMemAlloc", code)
        free, _ = memory(cuda)
        portion = min(portion, max(0, free - left) // GRANULE * GRANULE)
    return {
        "device": ordinal,
        "uuid": device_uuid(bytes(uuid)),
        "total": total,
        "free": free,
        "held": held,
    }


def memory(cuda: Any) -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo", cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value


def answer(left: int) -> dict[str, Any]:
    try:
        cuda, count = load(), c_int()
        must("cuInit", cuda.cuInit(0))
        must("cuDeviceGetCount", cuda.cuDeviceGetCount(byref(count)))
        return {"devices": [hold(cuda, ordinal, left) for ordinal in range(count.value)]}
    except (OSError, CallFailed) as error:
        return {"error": str(error)}


def main() -> None:
    left, parent = (int(word) for word in sys.argv[1:3])
    end_with(parent)
    print(json.dumps(answer(left)), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)
