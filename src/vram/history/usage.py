"""Byte-seconds by user and hour: what was held, what of it by idle processes, what was left behind."""

from __future__ import annotations

import sqlite3

from vram.history import schema
from vram.history.holds import OpenHold

NOT_NAMED = -1
"""The uid of what nobody is known to hold."""


class Usage:
    """Sums in memory, added to the file's with each commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sums: dict[tuple[int, int], list[int]] = {}
        self._users: dict[int, str | None] = {}

    def add(self, hold: OpenHold, seconds: float, wall: float) -> None:
        """*hold* was there for so many *seconds* more, up to *wall*."""
        if hold.nbytes and hold.topic != schema.HIDDEN:
            byte_s = int(hold.nbytes * seconds)
            sums = self._of(hold, wall)
            sums[0] += byte_s
            sums[1] += byte_s if hold.idle else 0
            sums[2] += byte_s if hold.is_leftover else 0

    def add_idle(self, hold: OpenHold, seconds: float, wall: float) -> None:
        """It turned out to have been idle for so many *seconds*, which are counted as held already."""
        if hold.nbytes and hold.topic != schema.HIDDEN:
            self._of(hold, wall)[1] += int(hold.nbytes * seconds)

    def write(self) -> None:
        """Add everything to the file, in the transaction that is open."""
        for (hour, uid), sums in self._sums.items():
            self._connection.execute(
                "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (hour, uid) DO UPDATE SET"
                " held = held + excluded.held, idle = idle + excluded.idle,"
                " leftover = leftover + excluded.leftover, user = excluded.user",
                (hour, uid, self._users.get(uid), *sums),
            )
        self._sums, self._users = {}, {}

    @property
    def is_empty(self) -> bool:
        return not self._sums

    def _of(self, hold: OpenHold, wall: float) -> list[int]:
        uid = NOT_NAMED if hold.uid is None else hold.uid
        self._users[uid] = hold.user
        return self._sums.setdefault((int(wall // 3600), uid), [0, 0, 0])
