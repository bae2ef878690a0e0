"""Refused requests in the audit log: the first of each account at once, the others as a number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vram.reclaim import audit

EVERY_S = 60.0


class RefusalLog:
    """At most a line for each account and a summary every *every_s*: refusals cannot fill the log."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._counts: Counter[int] = Counter()

    def add(self, account: int, record: Mapping[str, Any]) -> None:
        """Log *record*, unless this account was refused since the last summary: then only count it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self.flush)
        if not self._counts[account]:
            audit.log_refusal(record)
        self._counts[account] += 1

    def flush(self) -> None:
        """Log how many were only counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        more = sum(count - 1 for count in self._counts.values())
        self._counts.clear()
        if more:
            message = f"{more} more requests were refused within {self._every_s:g} s"
            audit.log_refusal({"action": "socket", "count": more, "message": message})
