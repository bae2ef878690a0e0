"""Writes the history: what came, went and changed its size since the last reading, and who was idle.

Everything is written at once, into a transaction that is committed once a minute: a reading costs no disk
access, and a service that is killed loses that minute at most. Questions asked through the same connection
see all of it. After any error the transaction is rolled back, everything known is forgotten, and the next
reading begins as a service that starts again does: with what the file says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from vram.diagnosis.answering import Answering
from vram.diagnosis.watched import Identity, Item, Key
from vram.errors import HistoryUnavailable
from vram.history import schema
from vram.history.checkpoint import Checkpointer
from vram.history.file import DAMAGE, DamagedRow, WritableFile, is_damage
from vram.history.retention import Retention
from vram.history.things import (
    UNKNOWN_SAMPLE,
    Sample,
    Thing,
    divided,
    idle_pids,
    plain,
    samples,
    thing_key,
    things,
)
from vram.history.timeline import Moment, Recording
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.model.process import Workload
from vram.units import MIB

COMMIT_S = 60.0
IDLE_S = 60.0
"""How long a process must do nothing to count as idle: between two batches it does nothing as well."""
_RETRY_S = 10.0
_MOST_PROGRAMS = 4096
_LEAST_GAP_S = 60.0
_LOG_NBYTES = 2 * MIB  # after which the log is copied into the file
_NOT_NAMED = -1


class _Hold(msgspec.Struct, eq=False):
    """A row of ``hold`` without an end, and what is not in it: since when its process does nothing."""

    id: int
    since: int
    gpu_key: Key
    topic: int
    members: frozenset[Identity | None]
    nbytes: int | None
    most_bytes: int | None
    pid: int | None
    uid: int | None
    user: str | None
    idle: bool = False
    rests: bool = False
    rests_from: int = 0
    rests_from_ms: int = 0


class HistoryStore:
    """The history of one service. ``path`` is its file; nothing is opened before the first reading."""

    def __init__(
        self, path: str, *, keep_s: float = 30 * 86400, most_bytes: int = 1 << 30, interval_s: float = 5.0
    ) -> None:
        self.path = path
        self.keep_s, self.most_bytes = keep_s, most_bytes
        self.interval_s = interval_s
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
            self._retention = Retention(self._file, self.interval_s)
            self._retention.limit(self.most_bytes)
            gap_s = max(_LEAST_GAP_S, 3 * self.interval_s)
            self._recording = Recording(connection, gap_s)
            connection.execute("BEGIN IMMEDIATE")
            self._load_gpus()
            self._load_holds()
            connection.execute("COMMIT")
        except DAMAGE as error:
            raise self._failed(error) from error

    def met(self, error: Exception) -> HistoryUnavailable:
        """A question met *error*: a damaged file is moved aside. What to answer instead."""
        return self._failed(error)

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
                self._retention.make_room(moment, self._programs)
                self._was_full = False
            self._record(ledger, moment)
        except DAMAGE as error:
            self._retry_at = moment.boot + _RETRY_S
            raise self._failed(error) from error

    def tend(self, moment: Moment) -> None:
        """Delete what is too old or too much, a little at a time, and commit where it is time for that."""
        if self._file is None:
            return
        try:
            self._begin(moment)
            self._retention.step(moment, self.keep_s, self._programs)
            is_due = not 0 <= moment.boot - self._began < COMMIT_S
            if is_due or self._retention.should_commit:
                self.commit()
        except DAMAGE as error:
            raise self._failed(error) from error

    def commit(self) -> None:
        """Write to disk what was recorded until now."""
        if self._file is not None and self._file.connection.in_transaction:
            self._write_usage()
            self._file.connection.execute("COMMIT")
            if self._file.log_nbytes > _LOG_NBYTES:
                self._checkpointer.start()
            self._retention.check_log()

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

    def _failed(self, error: Exception) -> HistoryUnavailable:
        """Forget everything since the last commit, and close the file: the next reading opens it again."""
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
            except OSError as other:
                self.notice = f"{self.path} is damaged and cannot be moved aside: {other.strerror}"
        self._drop()
        self._was_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
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
        self._gpus: dict[tuple[object, ...], int] = {}
        self._gpu_keys: dict[int, Key] = {}
        self._holds: dict[tuple[object, ...], list[_Hold]] = {}
        self._samples: dict[Key, Sample] = {}
        self._programs: dict[tuple[object, ...], int] = {}
        self._usage: dict[tuple[int, int], list[int]] = {}
        self._users: dict[int, str | None] = {}
        self._resting: dict[int, _Hold] = {}
        self._comparable: dict[tuple[Key, bool], bool] = {}
        self._ledger: Ledger | None = None
        self._began = 0.0

    # ---- one reading ----

    def _begin(self, moment: Moment | None) -> None:
        assert self._file is not None
        if not self._file.connection.in_transaction:
            self._file.connection.execute("BEGIN IMMEDIATE")
            self._began = moment.boot if moment else 0.0

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
        whole = divided(ledger)
        _, keys = self._answering.compare(whole)
        self._comparable = {}
        for place, gpu in enumerate(whole.gpus):
            self._gpu_id(gpu, keys[place])
        self._write_samples(whole, keys, at, was_paused)
        before, self._holds = self._holds, {}
        idle = idle_pids(ledger)
        flags = schema.BEGAN_UNSEEN if was_paused else 0
        for thing in things(whole, keys, idle):
            match = next((each for each in before.get(thing.key, ()) if thing.is_same(each.members)), None)
            if match is not None:
                before[thing.key].remove(match)
            if not self._is_comparable(thing.gpu, thing.topic):
                if match is not None:
                    self._keep(thing.key, match)
            elif match is None:
                self._keep(thing.key, self._open_hold(thing, at, flags))
            else:
                self._change(match, thing, at)
                self._keep(thing.key, match)
        ending = schema.ENDED_UNSEEN if was_paused else 0
        for key, left in before.items():
            for hold in left:
                self._end_or_keep(key, hold, ended_at, ending)

    def _end_or_keep(self, key: tuple[object, ...], hold: _Hold, at: int, flags: int) -> None:
        gone = self._answering.gpus and hold.gpu_key not in self._answering.gpus
        if gone or self._is_comparable(hold.gpu_key, hold.topic):
            self._end(hold, at, flags)
        else:
            self._keep(key, hold)

    def _is_comparable(self, gpu: Key, topic: int) -> bool:
        """Whether this reading can prove that something is there or is not."""
        asked = (gpu, topic in (schema.PROCESS, schema.TOGETHER))
        if asked not in self._comparable:
            item = Item(key=(), topic="process" if asked[1] else "ghost", gpus=(gpu,))
            self._comparable[asked] = self._answering.is_comparable(item)
        return self._comparable[asked]

    def _keep(self, key: tuple[object, ...], hold: _Hold) -> None:
        self._holds.setdefault(key, []).append(hold)

    # ---- holds ----

    def _open_hold(self, thing: Thing, at: int, flags: int) -> _Hold:
        holder = thing.holder
        made = self._execute(
            "INSERT INTO hold (gpu, topic, kind, since, span, flags, pid, started_at, program, dead_pid,"
            " code, others, nbytes, most_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._gpus[thing.gpu],
                thing.topic,
                schema.KIND_NUMBERS[thing.kind],
                at,
                schema.OPEN_SPAN,
                flags,
                *_who(holder),
                self._program(holder),
                thing.dead_pid,
                thing.code,
                _others_text(thing),
                thing.nbytes,
                thing.nbytes,
            ),
        )
        assert made.lastrowid is not None
        hold = _Hold(
            id=made.lastrowid,
            since=at,
            gpu_key=thing.gpu,
            topic=thing.topic,
            members=thing.members,
            nbytes=thing.nbytes,
            most_bytes=thing.nbytes,
            pid=holder.pid if holder else None,
            uid=holder.uid if holder else None,
            user=plain(holder.user) if holder else None,
        )
        self._rest(hold, thing.idle, at)
        return hold

    def _change(self, hold: _Hold, thing: Thing, at: int) -> None:
        """Take what differs: its size, who holds it, whether that one rests."""
        hold.members = thing.members
        pid = thing.holder.pid if thing.holder else None
        if pid != hold.pid:
            self._rename(hold, thing)
        has_changed = thing.nbytes != hold.nbytes
        if has_changed:
            hold.nbytes = thing.nbytes
            self._rest(hold, False, at)  # whoever allocates is at work
            self._execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?)", (hold.id, at, hold.nbytes))
        if hold.idle and not thing.idle:
            self._wake(hold)
        if (thing.nbytes or 0) > (hold.most_bytes or 0):
            hold.most_bytes = thing.nbytes
            self._execute("UPDATE hold SET most_bytes = ? WHERE id = ?", (thing.nbytes, hold.id))
        self._rest(hold, thing.idle, at)

    def _rename(self, hold: _Hold, thing: Thing) -> None:
        """A ghost is the same memory whoever holds it."""
        holder = thing.holder
        hold.pid, hold.uid = (holder.pid, holder.uid) if holder else (None, None)
        hold.user = plain(holder.user) if holder else None
        self._execute(
            "UPDATE hold SET pid = ?, started_at = ?, program = ?, others = ? WHERE id = ?",
            (*_who(holder), self._program(holder), _others_text(thing), hold.id),
        )

    def _end(self, hold: _Hold, at: int, flags: int) -> None:
        if hold.idle:
            self._wake(hold)
        self._resting.pop(hold.id, None)
        span = max(1, at - hold.since).bit_length()
        self._execute(
            "UPDATE hold SET until = ?, span = ?, flags = flags | ? WHERE id = ?",
            (max(at, hold.since + 1), span, flags, hold.id),
        )

    # ---- who is idle ----

    def _rest(self, hold: _Hold, is_idle: bool, at: int) -> None:
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
            self._add_usage(hold, (now_ms - hold.rests_from_ms) / 1000, moment, idle_only=True)

    def _wake_all(self, boot_ms: int) -> None:
        """Nobody knows what they did since: their rest ended with what was known."""
        for hold in [each for same in self._holds.values() for each in same if each.idle]:
            self._wake(hold, boot_ms)
        for hold in self._resting.values():
            hold.rests = False
        self._resting = {}

    def _wake(self, hold: _Hold, boot_ms: int | None = None) -> None:
        hold.idle = hold.rests = False
        rested_ms = max(0, (boot_ms or self._recording.last_boot_ms) - hold.rests_from_ms)
        self._execute(
            "UPDATE hold SET idle_ms = idle_ms + ?, idle_from = NULL WHERE id = ?", (rested_ms, hold.id)
        )

    def _count_usage(self, since_s: float, moment: Moment) -> None:
        if since_s > 0:
            for same in self._holds.values():
                for hold in same:
                    self._add_usage(hold, since_s, moment)

    def _add_usage(self, hold: _Hold, seconds: float, moment: Moment, *, idle_only: bool = False) -> None:
        if not hold.nbytes or hold.topic == schema.HIDDEN:
            return
        uid = _NOT_NAMED if hold.uid is None else hold.uid
        sums = self._usage.setdefault((int(moment.wall // 3600), uid), [0, 0, 0])
        self._users[uid] = hold.user
        byte_s = int(hold.nbytes * seconds)
        if not idle_only:
            sums[0] += byte_s
            sums[2] += byte_s if hold.topic in schema.LEFTOVER_TOPICS else 0
        sums[1] += byte_s if hold.idle else 0

    def _write_usage(self) -> None:
        if not self._usage:
            return
        assert self._file is not None
        if not self._file.connection.in_transaction:
            self._file.connection.execute("BEGIN IMMEDIATE")
        for (hour, uid), sums in self._usage.items():
            self._execute(
                "INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (hour, uid) DO UPDATE SET"
                " held = held + excluded.held, idle = idle + excluded.idle,"
                " leftover = leftover + excluded.leftover, user = excluded.user",
                (hour, uid, self._users.get(uid), *sums),
            )
        self._usage, self._users = {}, {}

    # ---- GPUs and programs ----

    def _gpu_id(self, gpu: GpuLedger, key: Key) -> None:
        """The row of a GPU under its present number; a GPU that was numbered anew has another."""
        known = self._gpus.get(key)
        row = (gpu.index, gpu.uuid, gpu.mig)
        if known is not None and (self._gpus.get(("row", *row)) == known or gpu.uuid is None):
            return
        found = self._gpus.get(("row", *row))
        if found is None:
            made = self._execute(
                "INSERT INTO gpu (number, uuid, mig, name) VALUES (?, ?, ?, ?)",
                (gpu.index, plain(gpu.uuid), gpu.mig, plain(gpu.name)),
            )
            assert made.lastrowid is not None
            found = self._gpus[("row", *row)] = made.lastrowid
        self._gpus[key] = found

    def _write_samples(self, ledger: Ledger, keys: dict[int, Key], at: int, was_paused: bool) -> None:
        found = samples(ledger, keys)
        for key in self._samples.keys() - found.keys():
            self._write_sample(key, UNKNOWN_SAMPLE, at)
        for key, sample in found.items():
            readable = sample if self._is_comparable(key, schema.PROCESS) else UNKNOWN_SAMPLE
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

    def _program(self, holder: Holder | None) -> int | None:
        if holder is None or (holder.command is None and holder.user is None):
            return None
        workload = None
        if holder.workload != Workload():
            workload = msgspec.json.encode(_short(holder.workload)).decode()
        row = (holder.uid, plain(holder.user), plain(holder.command), workload)
        known = self._programs.get(row)
        if known is None:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            known = self._programs[row] = self._find_program(row)
        return known

    def _find_program(self, row: tuple[object, ...]) -> int:
        digest = _digest(row)
        for found in self._execute(
            "SELECT id, uid, user, command, workload FROM program WHERE digest = ?", (digest,)
        ):
            if tuple(found[1:]) == row:
                return int(found[0])
        made = self._execute(
            "INSERT INTO program (digest, uid, user, command, workload) VALUES (?, ?, ?, ?, ?)",
            (digest, *row),
        )
        assert made.lastrowid is not None
        return made.lastrowid

    def _execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        assert self._file is not None
        return self._file.connection.execute(statement, values)

    # ---- what the file says at a start ----

    def _load_gpus(self) -> None:
        assert self._file is not None
        for number, index, uuid, mig in self._file.connection.execute(
            "SELECT id, number, uuid, mig FROM gpu"
        ):
            self._gpus[("row", index, uuid, mig)] = number
            self._gpu_keys[number] = (uuid, mig) if uuid is not None else (index, mig)

    def _load_holds(self) -> None:
        """Go on with everything that had no end."""
        assert self._file is not None
        self._recording.pause()
        rows = self._file.connection.execute(
            "SELECT hold.id, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, nbytes,"
            " most_bytes, uid, user, (SELECT boot_ms FROM moment WHERE id = idle_from),"
            " (SELECT step.nbytes FROM step WHERE hold = hold.id ORDER BY moment DESC LIMIT 1),"
            " EXISTS (SELECT 1 FROM step WHERE hold = hold.id)"
            " FROM hold LEFT JOIN program ON program.id = hold.program WHERE until IS NULL"
        ).fetchall()
        for row in rows:
            _require_sound(row)
            number, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, *rest = row
            nbytes, most_bytes, uid, user, idle_from_ms, latest, has_changed = rest
            gpu_key = self._gpu_keys.get(gpu, (gpu, None))
            who = None if pid is None else (pid, started_at)
            hold = _Hold(
                id=number,
                since=since,
                gpu_key=gpu_key,
                topic=topic,
                members=_members(topic, who, others),
                nbytes=latest if has_changed else nbytes,
                most_bytes=most_bytes,
                pid=pid,
                uid=uid,
                user=user,
            )
            if idle_from_ms is not None:
                hold.idle, hold.rests_from_ms = True, idle_from_ms
                self._wake(hold)
            key = thing_key(topic, gpu_key, schema.KINDS_BY_NUMBER[kind], who, dead_pid, code)
            self._keep(key, hold)

    def _require_same_boot(self, boot_id: str) -> None:
        """No process outlives a boot: what was there has ended, when nobody knows."""
        if self._recording.boot_id in (None, boot_id):
            return
        at = self._recording.pause()
        for same in self._holds.values():
            for hold in same:
                self._end(hold, at, schema.ENDED_UNSEEN)
        self._holds = {}


def _require_sound(row: Sequence[object]) -> None:
    """Raise DatabaseError where a row of ``hold`` has values that were never written to it."""
    number, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, *rest = row
    *sizes, user, idle_from_ms, latest, _ = rest
    whole = all(isinstance(each, int) for each in (number, gpu, topic, kind, since))
    numbers = (pid, started_at, dead_pid, *sizes, idle_from_ms, latest)
    words = (code, others, user)
    known = all(each is None or isinstance(each, int) for each in numbers) and kind in schema.KINDS_BY_NUMBER
    if not (whole and known and all(each is None or isinstance(each, str) for each in words)):
        raise DamagedRow("a hold has values that make no sense")


def _who(holder: Holder | None) -> tuple[int | None, int | None]:
    return (holder.pid, holder.started_at) if holder else (None, None)


def _others_text(thing: Thing) -> str | None:
    """Pids and start times of the other holders, as ``7:120,8``."""
    words = (f"{pid}" if started is None else f"{pid}:{started}" for pid, started in thing.others)
    return ",".join(words) or None


def _members(topic: int, who: Identity | None, others: str | None) -> frozenset[Identity | None]:
    """Those of whom one must still be there for it to be the same memory."""
    if topic not in (schema.EXPORTED, schema.TOGETHER):
        return frozenset()
    return frozenset((*_identities(others or ""), *((who,) if who else ())))


def _identities(text: str) -> list[Identity]:
    found: list[Identity] = []
    for word in text.split(","):
        pid, _, started = word.partition(":")
        if pid.isdecimal() and (started.isdecimal() or not started):
            found.append((int(pid), int(started) if started else None))
    return found


def _short(workload: Workload) -> dict[str, str]:
    """What is known of a workload, as text that the file can hold."""
    said = msgspec.structs.asdict(workload)
    return {name: plain(str(value)) or "" for name, value in said.items() if value is not None}


def _digest(row: tuple[object, ...]) -> int:
    from hashlib import blake2b

    return int.from_bytes(
        blake2b(repr(row).encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )
