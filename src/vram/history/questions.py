"""What people ask of the history: who held a GPU when, ghosts, waste, memory over time, and a search.

Every question works on an open connection, reads only, and is bounded: by a limit of rows, and by time where
``within`` is used. Times are seconds since 1970.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest
from typing import Any

import msgspec

from vram.errors import HistoryUnavailable, NothingFound, UsageError
from vram.history import schema
from vram.history.rows import identities
from vram.history.schema import KINDS_BY_NUMBER, SAMPLED
from vram.history.sqlite_codes import INTERRUPT, code_of
from vram.history.things import plain
from vram.history.timeline import Times, overlapping
from vram.model.history import (
    Held,
    HoldersReport,
    PastGhostsReport,
    Recorded,
    SearchReport,
    SeriesPoint,
    SeriesReport,
    UserWaste,
    WasteReport,
)
from vram.model.moment import LATEST, rfc3339
from vram.model.process import Workload

MAX_ROWS = 10_000
_MAX_PROGRAMS = 2_000
_MAX_SHOWN = 3
# Fewer readings are not worth a line: memory of a process that exits has no owner for a moment.
_MIN_READINGS = 2
# Moments are kept in milliseconds.
_END_OF_SECOND_S = 0.999
_COLUMNS = (
    "id, gpu, topic, kind, since, until, flags, pid, started_at, program, dead_pid, code, others, nbytes,"
    " most_bytes, idle_ms, idle_from"
)
_SAMPLE = ", ".join(("moment", "total", "leftover", *SAMPLED))


@contextmanager
def within(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Let questions in this block take *seconds* together; raises HistoryUnavailable after that."""
    until = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > until, 5000)
    try:
        yield
    except sqlite3.OperationalError as error:
        if code_of(error) != INTERRUPT:
            raise
        hint = "ask for a shorter time, or for fewer GPUs"
        raise HistoryUnavailable(f"the answer took longer than {seconds:g} s", hint=hint) from error
    finally:
        connection.set_progress_handler(None, 0)


class Questions:
    """Answers from one state of the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._times = Times(connection)
        rows = connection.execute("SELECT id, number, uuid, mig FROM gpu")
        self._gpus = {row[0]: (row[1], row[2], row[3]) for row in rows}
        self._programs: dict[int, tuple[Any, ...]] = {}

    # ---- the questions ----

    def holders_at(self, gpu: str | None, at: float | None) -> HoldersReport:
        """Who held memory at *at* (None: at the last reading)."""
        self._require_readings()
        moment, notes = self._moment_at(at)
        gpus = self._gpu_ids(gpu)
        index, mig = (None, None) if gpu is None else self._named(gpus)
        found = [
            self._held(row, moment) for row in overlapping(self._connection, _COLUMNS, moment, moment, gpus)
        ]
        found.sort(key=lambda each: (each.gpu, each.mig or "", -(each.nbytes or 0), each.pid or 0))
        read_at = self._times.wall(moment)
        return HoldersReport(
            gpu=index,
            mig=mig,
            at=rfc3339(read_at if at is None else at),
            read_at=rfc3339(read_at),
            holders=tuple(found[:MAX_ROWS]),
            recorded=self._recorded(),
            notes=tuple(notes),
        )

    def ghosts(
        self, start: float | None, end: float | None, *, gpu: str | None = None, limit: int = 100
    ) -> PastGhostsReport:
        """Memory of dead processes, and memory that nothing accounts for, in that time; the newest first."""
        first, last = self._range(start, end)
        gpus = set(self._gpu_ids(gpu))
        topics = ", ".join(map(str, schema.LEFTOVER_TOPICS))
        found = []
        for row in self._connection.execute(
            f"SELECT {_COLUMNS} FROM hold WHERE topic IN ({topics}) AND since <= ?"
            " AND (until IS NULL OR until > ?) ORDER BY since DESC",
            (last, first),
        ):
            lasted = (row[5] or self._times.last + 1) - row[4]
            if row[1] in gpus and lasted >= _MIN_READINGS:
                found.append(self._held(row, self._times.last))
                if len(found) > limit:
                    break
        return PastGhostsReport(
            ghosts=tuple(found[:limit]), recorded=self._recorded(), more=len(found) > limit
        )

    def search(
        self,
        text: str,
        start: float | None,
        end: float | None,
        *,
        gpu: str | None = None,
        limit: int = 100,
        fields: Sequence[str] = ("user", "command", "workload"),
    ) -> SearchReport:
        """What processes held that have *text* in one of *fields*, or that pid; the newest first."""
        first, last = self._range(start, end)
        gpus = set(self._gpu_ids(gpu))
        rows: list[Any] = []
        for program in self._matching(text, fields):
            rows += self._of_program(program, first, last, gpus, limit + 1)
        if text.isascii() and text.isdecimal() and len(text) < 10:
            where = f"(pid = {int(text)} OR dead_pid = {int(text)})"
            rows += overlapping(self._connection, _COLUMNS, first, last, sorted(gpus), where=where)
        newest = nlargest(limit + 1, {row[0]: row for row in rows}.values(), key=lambda row: row[0])
        held = tuple(self._held(row, self._times.last) for row in newest[:limit])
        return SearchReport(query=text, rows=held, recorded=self._recorded(), more=len(newest) > limit)

    def waste(self, start: float | None, end: float | None, *, limit: int = 100) -> WasteReport:
        """Users by byte-seconds that they held without using them, the most first."""
        first, last = self._range(start, end)
        hours = (
            int((self._times.wall(first) if start is None else start) // 3600),
            int(min(LATEST if end is None else end, LATEST) // 3600),
        )
        rows = self._connection.execute(
            "SELECT uid, max(user), sum(held), sum(idle), sum(leftover) FROM usage WHERE hour BETWEEN ? AND ?"
            " GROUP BY uid ORDER BY sum(idle) + sum(leftover) DESC, sum(held) DESC LIMIT ?",
            (*hours, limit),
        ).fetchall()
        longest = self._longest_idle(first, last)
        return WasteReport(
            users=tuple(
                UserWaste(
                    uid=None if uid < 0 else uid,
                    user=user,
                    held_byte_s=held,
                    idle_byte_s=idle,
                    leftover_byte_s=leftover,
                    longest=tuple(longest.get(None if uid < 0 else uid, ())),
                )
                for uid, user, held, idle, leftover in rows
            ),
            recorded=self._recorded(),
        )

    def series(self, gpu: str, start: float | None, end: float | None, *, points: int = 400) -> SeriesReport:
        """One GPU's memory over time in about *points* points; none that was the highest is left out."""
        first, last = self._range(start, end)
        rows: dict[int, tuple[Any, ...]] = {}
        found = self._gpu_ids(gpu)
        # Without the MIG devices of a GPU that is meant as a whole.
        numbers = [number for number in found if self._gpus[number][2] is None] or found
        index, mig = self._named(numbers)
        for number in numbers:
            rows |= self._samples(number, first, last, max(1, points // 2))
        for (pause,) in self._connection.execute(
            "SELECT id FROM moment WHERE pause = 1 AND id BETWEEN ? AND ?", (first, last)
        ):
            rows[pause] = (pause, *(None,) * (2 + len(SAMPLED)))
        return SeriesReport(
            gpu=index,
            mig=mig,
            points=tuple(self._point(rows[moment], max(moment, first)) for moment in sorted(rows)),
            recorded=self._recorded(),
        )

    def only_gpu(self) -> str:
        """The one GPU that was recorded; raises UsageError where there are several."""
        known = sorted({index for index, _, _ in self._gpus.values()})
        if len(known) > 1:
            raise UsageError("which GPU?", hint=f"--gpu chooses one of {', '.join(map(str, known[:64]))}")
        self._require_readings()
        return str(known[0]) if known else "0"

    # ---- times ----

    def _require_readings(self) -> None:
        if not self._times.count:
            raise NothingFound(
                "nothing was recorded yet", hint="`vram serve` records; look again in a minute"
            )

    def _recorded(self) -> Recorded:
        times = self._times
        if not times.count:
            return Recorded(first=None, last=None, readings=0)
        return Recorded(
            first=rfc3339(times.wall(times.first)), last=rfc3339(times.wall(times.last)), readings=times.count
        )

    def _range(self, start: float | None, end: float | None) -> tuple[int, int]:
        self._require_readings()
        if start is not None and end is not None and start > end:
            raise UsageError("the time ends before it begins", hint="--since comes before --until")
        first = self._times.first if start is None else self._times.before(start) or self._times.after(start)
        last = self._times.last if end is None else self._times.before(end)
        return first, last

    def _moment_at(self, at: float | None) -> tuple[int, list[str]]:
        """The reading that answers for *at*, and what must be said about it.

        Answers give whole seconds, rounded down. So a whole second means all of it: the time that an answer
        gives for a change finds what began then.
        """
        times = self._times
        if at is None:
            return (
                times.last - 1 if times.is_pause(times.last) and times.last > times.first else times.last
            ), []
        found = times.at(at if at % 1 else at + _END_OF_SECOND_S)
        if not found:
            raise NothingFound(
                f"nothing was recorded at {rfc3339(at)}",
                hint=f"the recording begins at {rfc3339(times.wall(times.first))}",
            )
        notes = []
        if len(found) > 1:
            first = rfc3339(times.wall(found[0]))
            notes.append(
                f"the clock was set back: this came {len(found)} times, first at {first}; this is the last"
            )
        moment = found[-1]
        if times.is_pause(moment) and moment > times.first:
            if times.wall(moment - 1) < at:
                notes.append(self._pause_note(moment))
            moment -= 1
        return moment, notes

    def _pause_note(self, moment: int) -> str:
        before = rfc3339(self._times.wall(moment - 1))
        if moment == self._times.last:
            return f"nothing was recorded after {before}: this was held then"
        after = rfc3339(self._times.wall(moment + 1))
        return f"nothing was recorded between {before} and {after}: this was held before"

    # ---- GPUs ----

    def _gpu_ids(self, word: str | None) -> list[int]:
        """The rows of a GPU and of its MIG devices; of a word that names one, only that."""
        if word is None:
            return list(self._gpus)
        found = [
            number
            for number, (index, uuid, mig) in self._gpus.items()
            if word in (str(index), mig) or (len(word) >= 8 and (uuid or "").lower().startswith(word.lower()))
        ]
        if not found:
            known = sorted({mig or str(index) for index, _, mig in self._gpus.values()})
            raise NothingFound(
                f"no GPU {word} was recorded", hint=f"these were: {', '.join(known[:64]) or 'none'}"
            )
        return found

    def _named(self, numbers: list[int]) -> tuple[int, str | None]:
        """The GPU that these rows are of, and its MIG device where they are of that alone."""
        index, _, mig = self._gpus[numbers[0]]
        return index, mig if all(self._gpus[number][2] == mig for number in numbers) else None

    # ---- rows ----

    def _held(self, row: Any, moment: int) -> Held:
        """A row of ``hold`` as it was at *moment*, or as it was at its end."""
        number, gpu, _, kind, since, until, flags, pid, started_at, program, dead_pid, code, others = row[:13]
        nbytes, most_bytes, idle_ms, idle_from = row[13:]
        times, (index, uuid, mig) = self._times, self._gpus[gpu]
        uid, user, command, workload = self._program(program)
        step = self._connection.execute(
            "SELECT nbytes FROM step WHERE hold = ? AND moment <= ? ORDER BY moment DESC LIMIT 1",
            (number, moment),
        ).fetchone()
        idle_s = idle_ms / 1000 + (times.length_s(idle_from, times.last) if idle_from is not None else 0.0)
        return Held(
            gpu=index,
            mig=mig,
            gpu_uuid=uuid,
            kind=KINDS_BY_NUMBER.get(kind, "process"),
            nbytes=step[0] if step else nbytes,
            most_bytes=most_bytes,
            pid=pid,
            started_at=started_at,
            uid=uid,
            user=user,
            command=command,
            workload=workload,
            co_holders=tuple(pid for pid, _ in identities(others)),
            dead_pid=dead_pid,
            code=code,
            since=rfc3339(times.wall(since)),
            until=None if until is None else rfc3339(times.wall(until)),
            held_s=round(times.length_s(since, until or times.last), 1),
            idle_s=round(idle_s, 1),
            since_seen=not flags & schema.BEGAN_UNSEEN,
            until_seen=not flags & schema.ENDED_UNSEEN,
        )

    def _program(self, number: int | None) -> tuple[int | None, str | None, str | None, Workload]:
        if number is None:
            return None, None, None, Workload()
        if number not in self._programs:
            row = self._connection.execute(
                "SELECT uid, user, command, workload FROM program WHERE id = ?", (number,)
            ).fetchone()
            self._programs[number] = row or (None, None, None, None)
        uid, user, command, workload = self._programs[number]
        return uid, user, command, _workload(workload)

    def _matching(self, text: str, fields: Sequence[str]) -> list[int]:
        """Programs with *text* in one of *fields*, the newest first."""
        pattern = (
            "%" + (plain(text) or "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        )
        conditions = " OR ".join(f"{field} LIKE :text ESCAPE '\\'" for field in fields) or "0"
        rows = self._connection.execute(
            f"SELECT id FROM program WHERE {conditions} ORDER BY id DESC LIMIT :most",
            {"text": pattern, "most": _MAX_PROGRAMS},
        )
        return [row[0] for row in rows]

    def _of_program(self, program: int, first: int, last: int, gpus: set[int], limit: int) -> list[Any]:
        found = []
        for row in self._connection.execute(
            f"SELECT {_COLUMNS} FROM hold WHERE program = ? AND since <= ? AND (until IS NULL OR until > ?)"
            " ORDER BY id DESC",
            (program, last, first),
        ):
            if row[1] in gpus:
                found.append(row)
                if len(found) >= limit:
                    break
        return found

    def _longest_idle(self, first: int, last: int) -> dict[int | None, list[Held]]:
        """For each user the holds that wasted most: idle, or a dead process's."""
        worst: dict[int | None, list[tuple[float, int, Any]]] = {}
        topics = ", ".join(map(str, schema.LEFTOVER_TOPICS))
        where = f"(idle_ms > 0 OR idle_from IS NOT NULL OR topic IN ({topics}))"
        for row in overlapping(self._connection, _COLUMNS, first, last, least_span=2, where=where):
            is_leftover = row[2] in schema.LEFTOVER_TOPICS
            idle_s = row[15] / 1000 + (self._times.length_s(row[16], last) if row[16] is not None else 0.0)
            spent_s = self._times.length_s(row[4], row[5] or self._times.last) if is_leftover else idle_s
            uid = self._program(row[9])[0]
            mine = worst.setdefault(uid, [])
            mine.append((spent_s * (row[14] or 0), row[0], row))
            if len(mine) > 100:
                worst[uid] = nlargest(_MAX_SHOWN, mine)
        return {
            uid: [self._held(row, last) for _, _, row in nlargest(_MAX_SHOWN, mine)]
            for uid, mine in worst.items()
        }

    def _samples(self, gpu: int, first: int, last: int, buckets: int) -> dict[int, tuple[Any, ...]]:
        """The state at *first*, and of each bucket the highest and the last; where it is unknown, always."""
        width = max(1, -(-(last - first + 1) // buckets))
        before = f"SELECT {_SAMPLE} FROM sample WHERE gpu = ? AND moment <= ? ORDER BY moment DESC LIMIT 1"
        ends = (first, *range(min(first + width - 1, last), last, width), last)
        rows = [row for end in ends for row in self._connection.execute(before, (gpu, end))]
        here = "FROM sample WHERE gpu = ? AND moment > ? AND moment <= ?"
        # Of a group with one max(), SQLite takes the other columns from the row that has it.
        rows += self._connection.execute(
            f"SELECT {_SAMPLE}, max(used) {here} GROUP BY (moment - ?) / ?", (gpu, first, last, first, width)
        )
        rows += self._connection.execute(f"SELECT {_SAMPLE} {here} AND total IS NULL", (gpu, first, last))
        return {row[0]: tuple(row[: 3 + len(SAMPLED)]) for row in rows}

    def _point(self, row: Sequence[Any], moment: int) -> SeriesPoint:
        at = rfc3339(self._times.wall(moment))
        total, leftover = row[1], row[2]
        if total is None:
            return SeriesPoint(at=at, total_bytes=None)
        kinds: dict[str, int] = {
            kind: nbytes for kind, nbytes in zip(SAMPLED, row[3:], strict=True) if nbytes
        }
        kinds["free"] = max(0, total - sum(kinds.values()))
        return SeriesPoint(at=at, total_bytes=total, kinds=kinds, leftover_bytes=leftover or 0)


def _workload(text: str | None) -> Workload:
    if text is None:
        return Workload()
    try:
        return msgspec.json.decode(text.encode(), type=Workload)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return Workload()
