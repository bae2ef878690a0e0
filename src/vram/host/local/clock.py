"""The machine's clocks."""

from __future__ import annotations

import time


class LocalClock:
    """Wall time for people, monotonic time for deadlines."""

    def now(self) -> str:
        # strftime and not datetime: importing the latter costs more than a whole scan.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
