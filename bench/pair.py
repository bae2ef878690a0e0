"""What a buffer costs beside the driver's own two calls, both from Python, in turns.

python bench/pair.py NBYTES TURNS PAIRS        prints two figures, in seconds
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from statistics import median


def pair_s(nbytes: int, *, turns: int, pairs: int) -> tuple[float, float]:
    """Seconds for one allocation and its free: by the two raw calls, and by ``vram.Buffer``.

    In short turns, one after the other, of which the median difference counts: a driver and a
    processor have several speeds, and a whole series of turns at one of them would decide everything.
    """
    from vram import Buffer

    cuda, context, word = ctypes.CDLL("libcuda.so.1"), c_void_p(), c_uint64()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    take, give = cuda.cuMemAlloc_v2, cuda.cuMemFree_v2
    take.argtypes, give.argtypes = (c_void_p, c_size_t), (c_uint64,)

    def by_hand() -> None:
        take(byref(word), nbytes)
        give(word.value)

    def owned() -> None:
        Buffer(nbytes).close()

    rounds = [(_once(by_hand, pairs), _once(owned, pairs)) for _ in range(turns)]
    raw_s = median(raw for raw, _ in rounds)
    return raw_s, raw_s + median(ours - raw for raw, ours in rounds)


def _once(function: Callable[[], None], pairs: int) -> float:
    begin = time.perf_counter()
    for _ in range(pairs):
        function()
    return (time.perf_counter() - begin) / pairs


if __name__ == "__main__":
    chosen = [int(word) for word in sys.argv[1:4]]
    print(*pair_s(chosen[0], turns=chosen[1], pairs=chosen[2]))
