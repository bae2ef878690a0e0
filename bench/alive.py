"""What finding referrers and flushing cost, timed inside one process; prints medians in seconds.

python bench/alive.py TURNS

A flush with a context and nothing to do; then ``vram.live()`` over a hundred thousand arrays on
one allocation, in a list, a dict and the instances of a class, with what refers to them and without.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import vram

ARRAYS = 100_000


class Step:
    """Keeps an array as an attribute, as programs do."""

    def __init__(self, batch: vram.Buffer) -> None:
        self.batch = batch


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main(turns: int) -> None:
    vram.Buffer("64MiB").close()  # makes the context
    vram.flush()
    flushed = [timed(vram.flush) for _ in range(turns)]
    whole = vram.Buffer("64MiB")
    third = ARRAYS // 3
    views = [vram.Buffer.from_cuda_array_interface(whole) for _ in range(third)]
    cache = {number: vram.Buffer.from_cuda_array_interface(whole) for number in range(third)}
    steps = [Step(vram.Buffer.from_cuda_array_interface(whole)) for _ in range(ARRAYS - 2 * third - 1)]
    found = vram.live()
    assert len(found) == ARRAYS == 1 + len(views) + len(cache) + len(steps)
    assert not found.was_cut
    named = [timed(vram.live) for _ in range(turns)]
    counted = [timed(lambda: vram.live(holders=False)) for _ in range(turns)]
    print(median(flushed), median(named), median(counted))


if __name__ == "__main__":
    main(int(sys.argv[1]))
