"""What a buffer costs beside the driver's own calls, both from Python, in turns.

python bench/pair.py NBYTES TURNS PAIRS        prints three figures, in seconds
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

BUFFER_ID = 7


class Raw:
    """The driver by hand: no owner, no check, nothing remembered."""

    def __init__(self) -> None:
        cuda = ctypes.CDLL("libcuda.so.1")
        context = c_void_p()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        self.take, self.give, self.ask = cuda.cuMemAlloc_v2, cuda.cuMemFree_v2, cuda.cuPointerGetAttribute
        self.take.argtypes, self.give.argtypes = (c_void_p, c_size_t), (c_uint64,)
        self.ask.argtypes = (c_void_p, c_int, c_uint64)


def pair_s(nbytes: int, *, turns: int, pairs: int) -> tuple[float, float]:
    """Seconds for one allocation and its free: by the two raw calls, and by ``vram.Buffer``."""
    raw_s, _, ours_s = measured(nbytes, turns=turns, pairs=pairs)
    return raw_s, ours_s


def measured(nbytes: int, *, turns: int, pairs: int) -> tuple[float, float, float]:
    """The raw pair, the four calls that a buffer makes done by hand, and the buffer: the best turns."""
    from vram import Buffer

    raw = Raw()
    word, number = c_uint64(), c_uint64()

    def two_calls() -> None:
        raw.take(byref(word), nbytes)
        raw.give(word.value)

    def four_calls() -> None:
        raw.take(byref(word), nbytes)
        raw.ask(byref(number), BUFFER_ID, word.value)
        raw.ask(byref(number), BUFFER_ID, word.value)
        raw.give(word.value)

    def owned() -> None:
        Buffer(nbytes).close()

    contenders = (two_calls, four_calls, owned)
    rounds = [[_once(each, pairs) for each in contenders] for _ in range(turns)]
    two, four, ours = (min(column) for column in zip(*rounds, strict=True))
    return two, four, ours


def _once(function: Callable[[], None], pairs: int) -> float:
    begin = time.perf_counter()
    for _ in range(pairs):
        function()
    return (time.perf_counter() - begin) / pairs


if __name__ == "__main__":
    chosen = [int(word) for word in sys.argv[1:4]]
    print(*measured(chosen[0], turns=chosen[1], pairs=chosen[2]))
