"""Out of memory although nothing runs: what an exception, a library and a context really keep.

    vram virtual --memory 2GiB -- python examples/out-of-memory/before.py

A long-lived process, as a notebook or a service is one. A step fails and its exception is kept,
as every interactive prompt keeps the last one; a library fills a cache that its user cannot see.
Then there is no room for the next step, and the garbage collector changes nothing.
"""

from __future__ import annotations

import gc
import sys

from library import predict
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import vram

MIB = 1024**2


def step(nbytes: int) -> None:
    out = cuda.device_array(nbytes, "uint8")
    if len(out) > 400 * MIB:
        raise ValueError("a bad batch")


def main() -> None:
    predict("warm-up")
    try:
        step(512 * MIB)
    except ValueError as error:
        sys.last_value = error  # what the prompt does
    gc.collect()
    try:
        step(300 * MIB)
    except (CudaAPIError, MemoryError) as error:
        print("the next step:", str(error).splitlines()[0])
    print(vram.live())


if __name__ == "__main__":
    main()
