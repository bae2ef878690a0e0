"""Spreads the steps of a program over its life, so that what grows can be told from what is loaded once.

A trace that only says that memory was never freed cannot tell a leak from a model. So the programs here
allocate what they keep at the beginning, and leak later and to the end, for four times as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

MIN_S = 0.8
"""What leaks up to three steps before the end leaks to the end."""
STALLED = 75
"""The exit code of a program whose last step was paused for longer, by a busy machine: what leaked early in
that step is far from the end then, and nobody can tell where it would have gone on. It is started again."""


class Pace:
    """Made right before the program first uses CUDA."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def steps(self, count: int) -> Iterator[int]:
        """0 to *count* - 1, at equal distances. Raises SystemExit where the last of them took too long."""
        now = time.monotonic()
        each_s = max(MIN_S, 4 * (now - self._began)) / count
        for step in range(count):
            time.sleep(max(0.0, now + step * each_s - time.monotonic()))
            began = time.monotonic()
            yield step
        if time.monotonic() - began > 2 * each_s:
            raise SystemExit(STALLED)
