"""Fill device memory with what stdin brings, find it there, and wait to be killed with it.

    fill_and_wait DEVICE BLOCKS BLOCK_NBYTES      prints how many bytes were found

The first half of a remanence test between processes: standard library only, and memory that
is never freed.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from .libcuda import load


def must(code: int) -> None:
    if code:
        sys.exit(f"the driver answered {code}")


def opened(device: int) -> Any:
    cuda, context = load(), c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(device)))
    must(cuda.cuCtxSetCurrent(context))
    return cuda


def fill(cuda: Any, blocks: int, pattern: bytes) -> int:
    """How many bytes of *pattern* are found after writing it *blocks* times."""
    nbytes, start, found = len(pattern), c_uint64(), 0
    must(cuda.cuMemAlloc_v2(byref(start), c_size_t(blocks * nbytes)))
    seen = ctypes.create_string_buffer(nbytes)
    for number in range(blocks):
        at = c_uint64(start.value + number * nbytes)
        must(cuda.cuMemcpyHtoD_v2(at, pattern, c_size_t(nbytes)))
        must(cuda.cuMemcpyDtoH_v2(seen, at, c_size_t(nbytes)))
        found += nbytes if seen.raw == pattern else 0
    return found


def main() -> None:
    device, blocks, nbytes = (int(word) for word in sys.argv[1:4])
    pattern = sys.stdin.buffer.read(nbytes)
    print(fill(opened(device), blocks, pattern), flush=True)
    sys.stdin.buffer.read()  # until somebody kills us, or is gone
