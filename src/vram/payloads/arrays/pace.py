"""How a search inside another program leaves that program its time.

Python runs one thread at a time. The search works in short stretches and rests between them, so that the
program's own threads go on. A program's own call of ``vram.live()`` never rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Called between two parts of the work; True when the time is up.
Pause = Callable[[], bool]

WORK_S = 0.002
REST_S = 0.004


class Pace:
    """Rests after each stretch of work.

    ``longest_s`` is the most processor time that one stretch took: no other thread ran meanwhile.
    """

    def __init__(self, until: float = float("inf"), work_s: float = WORK_S, rest_s: float = REST_S) -> None:
        self.longest_s = self.worked_s = 0.0
        self._until, self._work_s, self._rest_s = until, work_s, rest_s
        self._since = time.thread_time()

    def __call__(self) -> bool:
        if time.thread_time() - self._since < self._work_s:
            return False
        self.mark()
        time.sleep(self._rest_s)
        self._since = time.thread_time()
        return time.monotonic() > self._until

    def mark(self) -> bool:
        """End a stretch without a rest, where a rest would delay the freeing of memory.

        Other threads still get the interpreter, after Python's switch interval of five milliseconds.
        """
        now = time.thread_time()
        self.worked_s += now - self._since
        self.longest_s = max(self.longest_s, now - self._since)
        self._since = now
        return False


def no_rest() -> bool:
    """The pace of a program that searches its own heap."""
    return False
