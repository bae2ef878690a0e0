"""Moments: when readings were taken, by a clock that never jumps, and what the wall clock said then.

A moment has a number, an era and the time since boot. While the wall clock is not set, an era's offset
turns that into a time of day; setting the clock, or a boot, begins another era. Ages inside one boot come
from boot time alone. Where the recording stopped, a moment is marked as a pause: nothing is known from it
until the next one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vram.history.schema import OPEN_SPAN
from vram.model.moment import Moment

# Sleeping and slewing move the wall clock against the boot clock by less than this between two eras.
_SAME_ERA_MS = 500


class Era(NamedTuple):
    """A time in which the wall clock was not set, from moment ``first`` on."""

    id: int
    boot_id: str
    offset_ms: int
    first: int


class Recording:
    """Writes moments. ``last`` is the newest one, zero where there is none yet."""

    def __init__(self, connection: sqlite3.Connection, gap_s: float) -> None:
        self._connection = connection
        self._gap_ms = int(gap_s * 1000)
        self.last = 0
        self.last_boot_ms = 0
        self._is_paused = True
        row = connection.execute(
            "SELECT id, boot_id, offset_ms, first FROM era ORDER BY id DESC LIMIT 1"
        ).fetchone()
        self._era = Era(*row) if row else None
        row = connection.execute("SELECT id, boot_ms, pause FROM moment ORDER BY id DESC LIMIT 1").fetchone()
        if row:
            self.last, self.last_boot_ms = row[0], row[1]
            self._is_paused = bool(row[2])

    @property
    def boot_id(self) -> str | None:
        return self._era.boot_id if self._era else None

    def pause(self) -> int:
        """Mark that nothing is known from the last moment on; returns the number of the mark."""
        if not self._is_paused and self._era:
            self._insert(self._era.id, self.last_boot_ms + 1, pause=1)
        return self.last

    def add(self, moment: Moment) -> tuple[int, float, bool]:
        """Write *moment*: its number, the seconds since the one before (0 after a pause), whether one was."""
        boot_ms = int(moment.boot * 1000)
        same_boot = self._era is not None and self._era.boot_id == moment.boot_id
        if not same_boot or not 0 <= boot_ms - self.last_boot_ms <= self._gap_ms:
            self.pause()
        resumed, since_s = self._is_paused, 0.0
        if not resumed:
            since_s = (boot_ms - self.last_boot_ms) / 1000
        offset_ms = int(moment.wall * 1000) - boot_ms
        era = self._era
        if era is None or not same_boot or abs(offset_ms - era.offset_ms) > _SAME_ERA_MS:
            era = self._begin_era(moment.boot_id, offset_ms)
        self._insert(era.id, boot_ms, pause=None)
        return self.last, since_s, resumed

    def _begin_era(self, boot_id: str, offset_ms: int) -> Era:
        made = self._connection.execute(
            "INSERT INTO era (boot_id, offset_ms, first) VALUES (?, ?, ?)",
            (boot_id, offset_ms, self.last + 1),
        )
        assert made.lastrowid is not None
        self._era = Era(made.lastrowid, boot_id, offset_ms, self.last + 1)
        return self._era

    def _insert(self, era: int, boot_ms: int, *, pause: int | None) -> None:
        self.last, self.last_boot_ms, self._is_paused = self.last + 1, boot_ms, bool(pause)
        self._connection.execute("INSERT INTO moment VALUES (?, ?, ?, ?)", (self.last, era, boot_ms, pause))


class Times:
    """Answers when a moment was, and which moment a time of day is."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT id, boot_id, offset_ms, first FROM era ORDER BY id")
        self._eras = {row[0]: Era(*row) for row in rows}
        self._known: dict[int, tuple[int, int, bool] | None] = {}
        row = connection.execute(
            "SELECT (SELECT min(id) FROM moment), (SELECT max(id) FROM moment),"
            " (SELECT value FROM progress WHERE name = 'kept-from')"
        ).fetchone()
        # Single moments before that are kept for what began then and still is there.
        self.first, self.last = max(row[0] or 0, row[2] or 0), row[1] or 0

    @property
    def count(self) -> int:
        """How many readings are kept; pauses count as one."""
        return self.last - self.first + 1 if self.last else 0

    def wall(self, moment: int) -> float:
        """What the wall clock said at *moment*, in seconds since 1970."""
        era, boot_ms, _ = self._moment(moment)
        offset_ms = self._eras[era].offset_ms if era in self._eras else 0
        return (boot_ms + offset_ms) / 1000

    def is_pause(self, moment: int) -> bool:
        return self._moment(moment)[2]

    def length_s(self, since: int, until: int) -> float:
        """Seconds from one moment to another. Across a boot only the wall clock can tell."""
        era, boot_ms, _ = self._moment(since)
        later_era, later_ms, _ = self._moment(until)
        if self._boot_id(era) == self._boot_id(later_era):
            return max(0, later_ms - boot_ms) / 1000
        return max(0.0, self.wall(until) - self.wall(since))

    def at(self, wall: float) -> list[int]:
        """The last moments at *wall*: none before the first; several where the clock was set back."""
        found = []
        wall_ms = int(wall * 1000)
        eras = list(self._eras.values())
        for place, era in enumerate(eras):
            end = eras[place + 1].first if place + 1 < len(eras) else self.last + 1
            first = max(era.first, self.first)
            moment = last_up_to(self._connection, first, end - 1, wall_ms - era.offset_ms)
            if not moment:
                continue
            following = end if end <= self.last else None
            is_inside = moment < end - 1 or following is None or self.wall(following) * 1000 > wall_ms
            if is_inside:
                found.append(moment)
        return found

    def before(self, wall: float) -> int:
        """The last of all moments up to *wall*, or zero."""
        found = self.at(wall)
        return found[-1] if found else 0

    def after(self, wall: float) -> int:
        """The first moment from *wall* on, or one beyond the last."""
        found = self.at(wall)
        if not found:
            return self.first if self.count and wall < self.wall(self.first) else self.last + 1
        return found[0] if self.wall(found[0]) >= wall else found[0] + 1

    def _moment(self, moment: int) -> tuple[int, int, bool]:
        """Era, boot time and whether it is a pause; of a moment that is not kept, those of the next one."""
        if moment not in self._known:
            row = self._connection.execute(
                "SELECT era, boot_ms, pause FROM moment WHERE id >= ? ORDER BY id LIMIT 1", (moment,)
            ).fetchone()
            self._known[moment] = (row[0], row[1], bool(row[2])) if row else None
        found = self._known[moment]
        if found is None:
            return self._moment(self.last) if moment != self.last else (0, 0, True)
        return found

    def _boot_id(self, era: int) -> str:
        return self._eras[era].boot_id if era in self._eras else ""


def last_up_to(connection: sqlite3.Connection, low: int, high: int, boot_ms: int) -> int:
    """The last of the moments from *low* to *high*, all of one boot, up to *boot_ms*; zero: none was."""
    found = 0
    while low <= high:
        middle = (low + high) // 2
        row = connection.execute(
            "SELECT id, boot_ms FROM moment WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1", (middle, high)
        ).fetchone()
        if row is not None and row[1] <= boot_ms:
            found, low = int(row[0]), row[0] + 1
        else:
            high = middle - 1
    return found


def overlapping(
    connection: sqlite3.Connection,
    columns: str,
    first: int,
    last: int,
    gpus: Sequence[int] | None = None,
    least_span: int = 1,
    where: str = "1",
) -> Iterator[Any]:
    """*columns* of everything held at a moment from *first* to *last*, on *gpus* (None: all).

    Of what has ended, only holds of *least_span* and more: shorter ones are the most, and matter least.
    A hold of span s lasted fewer than 2**s moments, so that those over a range began fewer than that before
    it: a short range of the index for each span, and not all that ever was.
    """
    if gpus is None:
        gpus = [row[0] for row in connection.execute("SELECT id FROM gpu")]
    newest = connection.execute("SELECT max(id) FROM moment").fetchone()[0] or 0
    here = f"SELECT {columns} FROM hold WHERE gpu = ? AND span = ? AND since <= ?"
    for gpu in gpus:
        yield from connection.execute(f"{here} AND {where}", (gpu, OPEN_SPAN, last)).fetchall()
        for span in range(least_span, newest.bit_length() + 1):
            yield from connection.execute(
                f"{here} AND since > ? AND until > ? AND {where}",
                (gpu, span, last, first - (1 << span), first),
            ).fetchall()
