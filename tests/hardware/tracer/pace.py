"""Spreads the steps of a program over its life, so that what grows can be told from what is loaded once.

A trace that only says that memory was never freed cannot tell a leak from a model. So the programs here
allocate what they keep at the beginning, and leak later and to the end, for four times as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

MIN_S = 0.8
"""What leaks up to three steps before the end leaks to the end: that long a busy machine may pause us."""


class Pace:
    """Made right before the program first uses CUDA."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def steps(self, count: int) -> Iterator[int]:
        """0 to *count* - 1, at equal distances."""
        now = time.monotonic()
        each_s = max(MIN_S, 4 * (now - self._began)) / count
        for step in range(count):
            time.sleep(max(0.0, now + step * each_s - time.monotonic()))
            yield step
