"""Keeps the history within its age and its size, a little at a time.

Detail goes first: what is older than a week, and under pressure older than an hour, keeps the peak and the
last value of every ten minutes. Then, only where the file is full, short processes go, the oldest first;
then the oldest of everything. Ghosts and what is still held are kept as long as there is room for anything.
"""

from __future__ import annotations

import time

from vram.errors import HistoryUnavailable
from vram.history import schema
from vram.history.file import PAGE_NBYTES, WritableFile
from vram.history.rows import ProgramTable
from vram.history.timeline import Times, last_up_to, overlapping
from vram.model.moment import Moment
from vram.units import MIB

MIN_BYTES = 8 * MIB
DEFAULT_BUDGET_S = 0.008
DETAIL_S = 7 * 86400.0
_PRESSED_DETAIL_S = 3600.0
_BUCKET_S = 600.0
_STEADY_MS = 3600 * 1000
"""What is older than this boot has its age from the wall clock, which must not have been set for so long."""
_SHORT_SPAN = 4  # fewer than 16 readings
_SOFT, _HARD = 0.9, 0.95  # of the pages that the file may have
_SLACK_PAGES = 256
_MAX_STEPS = 1000
_ROWS = 100
_ROUTINE_S = 60.0


class Retention:
    """Deletes from *file*. ``step`` is called with every reading."""

    def __init__(
        self, file: WritableFile, programs: ProgramTable, interval_s: float, budget_s: float
    ) -> None:
        self._file, self._programs = file, programs
        self._connection = file.connection
        self._budget_s = budget_s
        self._log_nbytes = 0
        self._most_pages = 0
        self._bucket = max(2, round(_BUCKET_S / interval_s))
        self._routine_at = 0.0
        self._has_routine = True
        self._cutoffs: dict[float, tuple[float, int]] = {}

    # ---- size ----

    def limit(self, most_bytes: int) -> None:
        """Let the file and its log together take *most_bytes*."""
        most = max(MIN_BYTES, most_bytes)
        self._log_nbytes = min(most // 4, 32 * MIB)
        self._most_pages = (most - self._log_nbytes - MIB // 2) // PAGE_NBYTES
        self._connection.execute(f"PRAGMA journal_size_limit = {MIB}")
        self._limit_pages()

    def _limit_pages(self) -> None:
        """SQLite refuses pages beyond the limit; a file that is larger already may still be worked in."""
        pages = self._pragma("page_count")
        most = self._most_pages if pages <= self._most_pages else pages + _SLACK_PAGES
        self._connection.execute(f"PRAGMA max_page_count = {most}")

    @property
    def is_pressed(self) -> bool:
        """Whether the file is nearly full."""
        return self._used_pages() > self._most_pages * _SOFT

    def _used_pages(self) -> int:
        return self._pragma("page_count") - self._pragma("freelist_count")

    def make_room(self, moment: Moment) -> None:
        """Delete until the file is not full any more: before something is written that would not fit."""
        for _ in range(_MAX_STEPS):
            if not self.is_pressed or not self._press(moment):
                break

    @property
    def is_log_long(self) -> bool:
        """Whether the log has become so long that it should be copied into the file."""
        return self._file.log_nbytes > self._log_nbytes // 2

    def check_log(self) -> None:
        """Raise HistoryUnavailable where a reader that does not end lets the log grow beyond its limit."""
        if not self.is_log_long:
            return
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if self.is_log_long:
            raise HistoryUnavailable(
                f"the history is not recorded now: a reader of {self._file.path} has not finished",
                hint="end it; `fuser` names it",
            )

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    # ---- one step ----

    def step(self, moment: Moment, keep_s: float) -> None:
        """Delete some of what has to go: within a few milliseconds, or for as long as a full file needs."""
        until = time.perf_counter() + self._budget_s
        if self._pragma("page_count") > self._most_pages:
            self._shrink(until)
        while self.is_pressed and self._press(moment):
            if time.perf_counter() > until and self._used_pages() <= self._most_pages * _HARD:
                return
        if moment.boot >= self._routine_at or moment.boot < self._routine_at - _ROUTINE_S:
            self._has_routine, self._routine_at = True, moment.boot + _ROUTINE_S
        while self._has_routine and time.perf_counter() < until:
            self._has_routine = self._routine(moment, keep_s)

    def _shrink(self, until: float) -> None:
        """Return empty pages to the file system, one with each call: Python's sqlite3 does not repeat it."""
        while self._pragma("freelist_count") and self._pragma("page_count") > self._most_pages:
            self._connection.execute("PRAGMA incremental_vacuum(1)")
            if time.perf_counter() > until:
                break
        self._limit_pages()

    def _routine(self, moment: Moment, keep_s: float) -> bool:
        """What time demands; False where nothing more is to be done now."""
        if self._thin(self._older_than(DETAIL_S, moment)):
            return True
        boundary = self._older_than(keep_s, moment)
        return boundary > self._progress("kept-from") and self._forget_before(boundary, moment, keep_s)

    def _press(self, moment: Moment) -> bool:
        """What size demands; False where nothing can be deleted."""
        if self._thin(self._older_than(_PRESSED_DETAIL_S, moment)):
            return True
        if self._drop_short():
            return True
        boundary = self._progress("kept-from") + self._bucket
        return boundary < self._newest() and self._forget_before(boundary, moment, None)

    # ---- detail ----

    def _thin(self, horizon: int) -> bool:
        return self._thin_samples(horizon) or self._thin_steps(horizon)

    def _thin_samples(self, horizon: int) -> bool:
        """Take the next ten minutes before *horizon*; False where there are none."""
        start = self._progress("samples-to") // self._bucket * self._bucket
        end = start + self._bucket
        if end > horizon:
            return False
        for (gpu,) in self._connection.execute("SELECT id FROM gpu").fetchall():
            here = "FROM sample WHERE gpu = :gpu AND moment >= :start AND moment < :end AND total IS NOT NULL"
            self._connection.execute(
                f"DELETE {here} AND moment <> (SELECT max(moment) {here})"
                f" AND moment <> (SELECT moment {here} ORDER BY used DESC, moment LIMIT 1)",
                {"gpu": gpu, "start": start, "end": end},
            )
        self._set_progress("samples-to", end)
        return True

    def _thin_steps(self, horizon: int) -> bool:
        """Take the next holds that changed before *horizon*; False after the last one."""
        done, hold = self._progress("steps-to"), self._progress("steps-hold")
        if horizon - done < self._bucket:
            return False
        row = self._connection.execute("SELECT min(hold) FROM step WHERE hold > ?", (hold,)).fetchone()
        if row[0] is None:
            self._set_progress("steps-to", horizon)
            self._set_progress("steps-hold", 0)
            return False
        rows = self._connection.execute(
            "SELECT moment, nbytes FROM step WHERE hold = ? AND moment >= ? AND moment < ? ORDER BY moment",
            (row[0], done, horizon),
        ).fetchall()
        gone = [(row[0], moment) for moment in _superfluous(rows, self._bucket)]
        self._connection.executemany("DELETE FROM step WHERE hold = ? AND moment = ?", gone)
        self._set_progress("steps-hold", row[0])
        return True

    # ---- rows ----

    def _drop_short(self) -> bool:
        """Delete the oldest of the processes that were there for a moment only."""
        found: list[tuple[int, int, int | None]] = []
        for (gpu,) in self._connection.execute("SELECT id FROM gpu").fetchall():
            for span in range(1, _SHORT_SPAN + 1):
                found += self._connection.execute(
                    "SELECT since, id, program FROM hold WHERE gpu = ? AND span = ? AND topic = ?"
                    " ORDER BY since LIMIT ?",
                    (gpu, span, schema.PROCESS, _ROWS // 4),
                ).fetchall()
        oldest = sorted(found, key=lambda row: row[0])[:_ROWS]
        self._delete_holds([(number, program) for _, number, program in oldest])
        return bool(oldest)

    def _forget_before(self, boundary: int, moment: Moment, keep_s: float | None) -> bool:
        """Delete what ended before *boundary*, some of it at a time; True where something was deleted."""
        rows = self._connection.execute(
            "SELECT id, program FROM hold WHERE until <= ? ORDER BY until LIMIT ?", (boundary, _ROWS)
        ).fetchall()
        if rows:
            self._delete_holds(rows)
            return True
        start = self._progress("kept-from")
        end = min(boundary, start + 10 * _ROWS)
        for (gpu,) in self._connection.execute("SELECT id FROM gpu").fetchall():
            # The last one before the boundary says what was there at the boundary.
            self._connection.execute(
                "DELETE FROM sample WHERE gpu = :gpu AND moment <"
                " (SELECT max(moment) FROM sample WHERE gpu = :gpu AND moment <= :end)",
                {"gpu": gpu, "end": end},
            )
        kept = {row[0] for row in overlapping(self._connection, "since", end, end)}
        gone = [(number,) for number in range(start, end) if number not in kept]
        self._connection.executemany("DELETE FROM moment WHERE id = ?", gone)
        self._connection.execute(
            "DELETE FROM era WHERE id < (SELECT era FROM moment WHERE id >= :end ORDER BY id LIMIT 1)"
            " AND id NOT IN (SELECT era FROM moment WHERE id < :end)",
            {"end": end},
        )
        if keep_s is not None:
            self._connection.execute(
                "DELETE FROM usage WHERE hour < ?", (int((moment.wall - keep_s) // 3600),)
            )
        self._set_progress("kept-from", end)
        return end > start

    def _delete_holds(self, rows: list[tuple[int, int | None]]) -> None:
        self._connection.executemany("DELETE FROM step WHERE hold = ?", [(number,) for number, _ in rows])
        self._connection.executemany("DELETE FROM hold WHERE id = ?", [(number,) for number, _ in rows])
        self._programs.drop_unused({program for _, program in rows if program is not None})

    # ---- ages ----

    def _older_than(self, seconds: float, moment: Moment) -> int:
        """The last moment that is *seconds* old or older; zero: none is. Looked for once a minute."""
        asked_at, found = self._cutoffs.get(seconds, (-1.0, 0))
        if not asked_at <= moment.boot < asked_at + _ROUTINE_S:
            found = self._found_older_than(seconds, moment)
            self._cutoffs[seconds] = (moment.boot, found)
        return found

    def _found_older_than(self, seconds: float, moment: Moment) -> int:
        first = self._connection.execute(
            "SELECT min(first) FROM era WHERE boot_id = ?", (moment.boot_id,)
        ).fetchone()[0]
        if first is None:
            return 0
        found = last_up_to(self._connection, first, self._newest(), int((moment.boot - seconds) * 1000))
        if found:
            return found
        began = self._connection.execute(
            "SELECT boot_ms FROM moment WHERE id >= (SELECT max(first) FROM era) ORDER BY id LIMIT 1"
        ).fetchone()
        if began is None or moment.boot * 1000 - began[0] < _STEADY_MS:
            return 0
        return min(int(first) - 1, Times(self._connection).before(moment.wall - seconds))

    def _newest(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(id), 0) FROM moment").fetchone()[0])

    def _progress(self, name: str) -> int:
        row = self._connection.execute("SELECT value FROM progress WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _set_progress(self, name: str, value: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (name, value))


def _superfluous(rows: list[tuple[int, int | None]], bucket: int) -> list[int]:
    """The steps that may go: within a bucket the largest and the last stay."""
    by_bucket: dict[int, list[tuple[int, int | None]]] = {}
    for row in rows:
        by_bucket.setdefault(row[0] // bucket, []).append(row)
    gone: list[int] = []
    for same in by_bucket.values():
        kept = (max(same, key=lambda row: row[1] or 0)[0], same[-1][0])
        gone += [moment for moment, _ in same if moment not in kept]
    return gone
