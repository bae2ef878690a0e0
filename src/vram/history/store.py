"""Writes the history: what came, went and changed its size since the last reading, and who was idle.

Everything is written at once, into a transaction that is committed once a minute: a reading costs no disk
access, and a service that is killed loses that minute at most. Questions asked through the same connection
see all of it. After any error the transaction is rolled back, everything known is forgotten, and the next
reading begins as a service that starts again does: with what the file says.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from vram.diagnosis.answering import Answering
from vram.diagnosis.tracker import Item, Key, Tracker
from vram.errors import HistoryUnavailable
from vram.history import schema
from vram.history.checkpoint import Checkpointer
from vram.history.file import DAMAGE, WritableFile, is_damage
from vram.history.retention import DEFAULT_BUDGET_S, Retention
from vram.history.rows import OpenHold, ProgramTable, Usage, load, others_text, who_columns
from vram.history.sqlite_codes import FULL, code_of
from vram.history.things import (
    UNKNOWN_SAMPLE,
    Sample,
    divide,
    idle_pids,
    plain,
    samples,
    things,
    topic_of,
)
from vram.history.timeline import Recording
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.model.moment import Moment
from vram.units import MIB

COMMIT_S = 60.0
IDLE_S = 60.0
"""How long a process must do nothing to count as idle: between two batches it does nothing as well."""
_RETRY_S = 10.0
_NAMING_READINGS = 12
_MIN_GAP_S = 60.0
_LOG_NBYTES = 2 * MIB  # after which the log is copied into the file


class HistoryStore:
    """The history of one service. ``path`` is its file; nothing is opened before the first reading."""

    def __init__(
        self,
        path: str,
        *,
        keep_s: float = 30 * 86400,
        most_bytes: int = 1 << 30,
        interval_s: float = 5.0,
        budget_s: float = DEFAULT_BUDGET_S,
    ) -> None:
        """*budget_s* is what deleting may take with each reading while there is still room."""
        self.path = path
        self.keep_s, self.most_bytes = keep_s, most_bytes
        self.interval_s, self.budget_s = interval_s, budget_s
        self.notice = ""
        self._file: WritableFile | None = None
        self._forget()
        self._retry_at = 0.0
        self._was_full = False

    # ---- from outside ----

    @property
    def connection(self) -> sqlite3.Connection | None:
        """For questions: it sees what is not committed yet. None where the file cannot be used now."""
        if self._file is not None:
            with suppress(*DAMAGE):
                self._write_usage()
        return self._file.connection if self._file else None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def nbytes(self) -> int:
        return self._file.nbytes if self._file else 0

    def open(self) -> None:
        """Open the file, which is made where it is missing. Raises HistoryUnavailable or BadInput."""
        if self._file is not None:
            return
        self._file = WritableFile(self.path)
        self._checkpointer = Checkpointer(self._file.path)
        self.notice = self._file.notice or self.notice
        try:
            connection = self._file.connection
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._programs, self._usage = ProgramTable(connection), Usage(connection)
            self._retention = Retention(self._file, self._programs, self.interval_s, self.budget_s)
            self._retention.limit(self.most_bytes)
            self._check_log()
            gap_s = max(_MIN_GAP_S, 3 * self.interval_s)
            self._recording = Recording(connection, gap_s)
            connection.execute("BEGIN IMMEDIATE")
            self._load_gpus()
            self._load_holds()
            connection.execute("COMMIT")
        except DAMAGE as error:
            raise self.fail(error) from error

    def record(self, ledger: Ledger, moment: Moment) -> None:
        """Remember what *ledger* says of *moment*. Raises HistoryUnavailable where that cannot be written."""
        if self._file is None:
            if moment.boot < self._retry_at:
                return
            self._retry_at = moment.boot + _RETRY_S
            self.open()
        try:
            if self._was_full:
                self._begin(moment)
                self._retention.make_room(moment)
                self._was_full = False
            self._record(ledger, moment)
        except DAMAGE as error:
            self._retry_at = moment.boot + _RETRY_S
            raise self.fail(error) from error

    def tend(self, moment: Moment) -> None:
        """Delete what is too old or too much, a little at a time, and commit where it is time for that."""
        if self._file is None:
            return
        try:
            self._begin(moment)
            self._retention.step(moment, self.keep_s)
            is_due = not 0 <= moment.boot - self._began < COMMIT_S
            if is_due or self._retention.is_log_long:
                self.commit()
        except DAMAGE as error:
            raise self.fail(error) from error

    def commit(self) -> None:
        """Write to disk what was recorded until now."""
        if self._file is not None and self._file.connection.in_transaction:
            self._write_usage()
            self._file.connection.execute("COMMIT")
            if self._file.log_nbytes > _LOG_NBYTES:
                self._checkpointer.start()
            self._check_log()

    def _check_log(self) -> None:
        """Write nothing more while the log cannot be emptied: it would grow beyond the limit."""
        if self._retention.is_log_long:
            self._checkpointer.close()  # while it is at work, we cannot
        try:
            self._retention.check_log()
        except HistoryUnavailable:
            self._drop()
            raise

    def limit(self, keep_s: float, most_bytes: int) -> None:
        """Take another limit of age and size; what is beyond it goes step by step."""
        self.keep_s, self.most_bytes = keep_s, most_bytes
        if self._file is not None:
            self._retention.limit(most_bytes)

    def close(self) -> None:
        if self._file is None:
            return
        try:
            with suppress(*DAMAGE):
                self._begin(None)
                self._recording.pause()
                self.commit()
        finally:
            self._drop()

    # ---- errors ----

    def fail(self, error: Exception) -> HistoryUnavailable:
        """Forget everything since the last commit, and close the file: the next reading opens it again.

        A damaged file is moved aside. Returns what to raise, or to answer where a question met *error*.
        """
        file = self._file
        if file is not None and file.connection.in_transaction:
            with suppress(*DAMAGE):
                file.connection.execute("ROLLBACK")
        if file is not None and is_damage(error):
            self._checkpointer.close()
            file.connection.close()
            try:
                file.move_aside("damaged")
                self.notice = file.notice
            except (OSError, HistoryUnavailable) as other:
                self.notice = f"{self.path} is damaged and cannot be moved aside: {other}"
        self._drop()
        self._was_full = code_of(error) == FULL
        reason = "there is no room on the disk, or within its limit" if self._was_full else str(error)
        hint = "it goes on by itself when there is room" if self._was_full else "see the service's log"
        return HistoryUnavailable(f"the history is not recorded now, {self.path}: {reason}", hint=hint)

    def _drop(self) -> None:
        file, self._file = self._file, None
        self._forget()
        if file is not None:
            self._checkpointer.close()
            with suppress(*DAMAGE):
                file.close()

    def _forget(self) -> None:
        self._answering = Answering(1)
        self._gpus: dict[Key, int] = {}
        self._gpu_rows: dict[tuple[int, str | None, str | None], int] = {}
        self._gpu_keys: dict[int, Key] = {}
        self._holds: Tracker[OpenHold] = Tracker()
        self._samples: dict[Key, Sample] = {}
        self._resting: dict[int, OpenHold] = {}
        self._ledger: Ledger | None = None
        self._began = 0.0

    # ---- one reading ----

    def _begin(self, moment: Moment | None) -> None:
        assert self._file is not None
        if not self._file.connection.in_transaction:
            self._file.connection.execute("BEGIN IMMEDIATE")
            self._began = moment.boot if moment else self._recording.last_boot_ms / 1000

    def _record(self, ledger: Ledger, moment: Moment) -> None:
        self._begin(moment)
        is_first = not self._recording.last
        self._require_same_boot(moment.boot_id)
        before_ms = self._recording.last_boot_ms
        at, since_s, was_paused = self._recording.add(moment)
        if was_paused:
            self._wake_all(before_ms)
        # What is gone after a pause was last seen before it.
        ended_at = at - 1 if was_paused and not is_first else at
        self._count_usage(since_s, moment)
        if ledger is not self._ledger or was_paused:
            self._compare(ledger, at, ended_at, was_paused)
            self._ledger = ledger
        self._settle_idle(moment)

    def _compare(self, ledger: Ledger, at: int, ended_at: int, was_paused: bool) -> None:
        idle = idle_pids(ledger)
        whole = divide(ledger)
        _, keys = self._answering.compare(whole)
        for place, gpu in enumerate(whole.gpus):
            self._gpu_id(gpu, keys[place])
        self._write_samples(whole, keys, at, was_paused)
        flags = schema.BEGAN_UNSEEN if was_paused else 0
        for item, known, _ in self._holds.match(filter(self._is_comparable, things(whole, keys))):
            is_process = topic_of(item) == schema.PROCESS
            is_idle = is_process and item.holder is not None and item.holder.pid in idle
            if known is None:
                known = self._open_hold(item, is_idle, at, flags)
            else:
                self._change(known, item, is_idle, at)
            self._holds.keep(known)
        for hold in self._holds.missing(self._is_end_proved):
            self._end(hold, ended_at, schema.ENDED_UNSEEN if was_paused else 0)

    def _is_comparable(self, item: Item) -> bool:
        """Whether this reading can prove that *item* is there."""
        return self._answering.is_comparable(item.gpus, item.topic)

    def _is_end_proved(self, hold: OpenHold) -> bool:
        gpus, topic = (hold.gpu_key,), "process" if hold.is_charged else "ghost"
        if self._answering.gpus and self._answering.is_removed(gpus):
            return True
        return self._answering.is_comparable(gpus, topic)

    # ---- holds ----

    def _open_hold(self, item: Item, is_idle: bool, at: int, flags: int) -> OpenHold:
        holder, (gpu,), topic = item.holder, item.gpus, topic_of(item)
        program = self._programs.number(holder)
        made = self._execute(
            "INSERT INTO hold (gpu, topic, kind, since, span, flags, pid, started_at, program, dead_pid,"
            " code, others, nbytes, most_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._gpus[gpu],
                topic,
                schema.KIND_NUMBERS[item.kind or "process"],
                at,
                schema.OPEN_SPAN,
                flags,
                *who_columns(holder),
                program,
                item.dead_pid,
                item.code,
                others_text(item),
                item.nbytes,
                item.nbytes,
            ),
        )
        assert made.lastrowid is not None
        hold = OpenHold(
            id=made.lastrowid,
            key=item.key,
            since=at,
            gpu_key=gpu,
            topic=topic,
            members=item.members,
            nbytes=item.nbytes,
            most_bytes=item.nbytes,
        )
        hold.take_holder(holder, program)
        self._rest(hold, is_idle, at)
        return hold

    def _change(self, hold: OpenHold, item: Item, is_idle: bool, at: int) -> None:
        """Take what differs: its size, who holds it, whether that one rests."""
        hold.members = item.members
        if self._has_another_name(hold, item.holder, at):
            self._rename(hold, item)
        if item.nbytes != hold.nbytes:
            hold.nbytes = item.nbytes
            self._rest(hold, False, at)  # a process that allocates is at work
            self._execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?)", (hold.id, at, hold.nbytes))
        if hold.idle and not is_idle:
            self._wake(hold)
        if (item.nbytes or 0) > (hold.most_bytes or 0):
            hold.most_bytes = item.nbytes
            self._execute("UPDATE hold SET most_bytes = ? WHERE id = ?", (item.nbytes, hold.id))
        self._rest(hold, is_idle, at)

    def _has_another_name(self, hold: OpenHold, holder: Holder | None, at: int) -> bool:
        """Whether another process holds it, or its process has taken another command since it began.

        Later ones are not followed: a program may show its progress in its name.
        """
        if holder is None or holder.pid != hold.pid:
            return (holder.pid if holder else None) != hold.pid
        return at - hold.since <= _NAMING_READINGS and plain(holder.command) != hold.command

    def _rename(self, hold: OpenHold, item: Item) -> None:
        """A ghost is the same memory whichever process holds it."""
        holder, before = item.holder, hold.program
        hold.take_holder(holder, self._programs.number(holder))
        self._execute(
            "UPDATE hold SET pid = ?, started_at = ?, program = ?, others = ? WHERE id = ?",
            (*who_columns(holder), hold.program, others_text(item), hold.id),
        )
        if before is not None and before != hold.program:
            self._programs.drop_unused({before})

    def _end(self, hold: OpenHold, at: int, flags: int) -> None:
        if hold.idle:
            self._wake(hold)
        self._resting.pop(hold.id, None)
        span = max(1, at - hold.since).bit_length()
        self._execute(
            "UPDATE hold SET until = ?, span = ?, flags = flags | ? WHERE id = ?",
            (max(at, hold.since + 1), span, flags, hold.id),
        )

    # ---- who is idle ----

    def _rest(self, hold: OpenHold, is_idle: bool, at: int) -> None:
        if not is_idle:
            hold.rests = False
            self._resting.pop(hold.id, None)
        elif not hold.rests and not hold.idle:
            hold.rests, hold.rests_from, hold.rests_from_ms = True, at, self._recording.last_boot_ms
            self._resting[hold.id] = hold

    def _settle_idle(self, moment: Moment) -> None:
        """What rests long enough is idle, from when it began to rest."""
        now_ms = self._recording.last_boot_ms
        for hold in [each for each in self._resting.values() if now_ms - each.rests_from_ms >= IDLE_S * 1000]:
            del self._resting[hold.id]
            hold.idle = True
            self._execute("UPDATE hold SET idle_from = ? WHERE id = ?", (hold.rests_from, hold.id))
            self._usage.add_idle(hold, (now_ms - hold.rests_from_ms) / 1000, moment.wall)

    def _wake_all(self, boot_ms: int) -> None:
        """What they did since is unknown: their rest ended with what was known."""
        for hold in [each for each in self._holds if each.idle]:
            self._wake(hold, boot_ms)
        for hold in self._resting.values():
            hold.rests = False
        self._resting = {}

    def _wake(self, hold: OpenHold, boot_ms: int | None = None) -> None:
        hold.idle = hold.rests = False
        rested_ms = max(0, (boot_ms or self._recording.last_boot_ms) - hold.rests_from_ms)
        self._execute(
            "UPDATE hold SET idle_ms = idle_ms + ?, idle_from = NULL WHERE id = ?", (rested_ms, hold.id)
        )

    def _count_usage(self, since_s: float, moment: Moment) -> None:
        if since_s > 0:
            for hold in self._holds:
                self._usage.add(hold, since_s, moment.wall)

    def _write_usage(self) -> None:
        assert self._file is not None
        if not self._usage.is_empty:
            self._begin(None)
            self._usage.write()

    # ---- GPUs ----

    def _gpu_id(self, gpu: GpuLedger, key: Key) -> None:
        """The row of a GPU under its present number; a GPU that was numbered anew has another."""
        if gpu.uuid is None and key in self._gpus:
            return  # it does not answer, and has the row that it had
        row = (gpu.index, gpu.uuid, gpu.mig)
        found = self._gpu_rows.get(row)
        if found is None:
            made = self._execute(
                "INSERT INTO gpu (number, uuid, mig, name) VALUES (?, ?, ?, ?)",
                (gpu.index, plain(gpu.uuid), gpu.mig, plain(gpu.name)),
            )
            assert made.lastrowid is not None
            found = self._gpu_rows[row] = made.lastrowid
        self._gpus[key] = found

    def _write_samples(self, ledger: Ledger, keys: dict[int, Key], at: int, was_paused: bool) -> None:
        found = samples(ledger, keys)
        for key in self._samples.keys() - found.keys():
            self._write_sample(key, UNKNOWN_SAMPLE, at)
        for key, sample in found.items():
            readable = sample if self._answering.is_comparable((key,), "process") else UNKNOWN_SAMPLE
            if was_paused or self._samples.get(key) != readable:
                self._write_sample(key, readable, at)

    def _write_sample(self, key: Key, sample: Sample, at: int) -> None:
        if self._samples.get(key) == sample == UNKNOWN_SAMPLE:
            return
        self._samples[key] = sample
        columns = ", ".join(("gpu", "moment", "total", "used", "leftover", *schema.SAMPLED))
        marks = ", ".join("?" * (len(sample) + 2))
        self._execute(
            f"INSERT OR REPLACE INTO sample ({columns}) VALUES ({marks})", (self._gpus[key], at, *sample)
        )

    def _execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        assert self._file is not None
        return self._file.connection.execute(statement, values)

    # ---- what the file says at a start ----

    def _load_gpus(self) -> None:
        assert self._file is not None
        for number, index, uuid, mig in self._file.connection.execute(
            "SELECT id, number, uuid, mig FROM gpu"
        ):
            self._gpu_rows[index, uuid, mig] = number
            self._gpu_keys[number] = (uuid, mig) if uuid is not None else (index, mig)

    def _load_holds(self) -> None:
        """Go on with everything that had no end; whether it went on resting is unknown."""
        assert self._file is not None
        self._recording.pause()
        for hold in load(self._file.connection, self._gpu_keys):
            if hold.idle:
                self._wake(hold)
            self._holds.keep(hold)

    def _require_same_boot(self, boot_id: str) -> None:
        """No process outlives a boot: what was there has ended, at an unknown time."""
        if self._recording.boot_id in (None, boot_id):
            return
        at = self._recording.pause()
        for hold in self._holds:
            self._end(hold, at, schema.ENDED_UNSEEN)
        self._holds.clear()
