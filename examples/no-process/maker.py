"""Allocates GPU memory that can be shared, hands its descriptor to the broker, and crashes.

python maker.py SOCKET
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

from cuda.bindings import driver as cuda

GIB = 1024**3
AS_DESCRIPTOR = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def must(answer: tuple[Any, ...]) -> Any:
    code, *values = answer
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(code.name)
    return values[0] if values else None


def shareable(nbytes: int) -> int:
    """The descriptor of a new allocation."""
    wanted = cuda.CUmemAllocationProp()
    wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.requestedHandleTypes = AS_DESCRIPTOR
    handle = must(cuda.cuMemCreate(nbytes, wanted, 0))
    return int(must(cuda.cuMemExportToShareableHandle(handle, AS_DESCRIPTOR, 0)))


def main() -> None:
    must(cuda.cuInit(0))
    must(cuda.cuCtxSetCurrent(must(cuda.cuDevicePrimaryCtxRetain(0))))
    with socket.socket(socket.AF_UNIX) as broker:
        broker.connect(sys.argv[1])
        socket.send_fds(broker, [b"!"], [shareable(GIB)])
        broker.recv(6)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
