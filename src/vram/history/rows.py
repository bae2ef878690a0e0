"""The writer's rows: what is held now, which programs there are, byte-seconds by user and hour."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct

from vram.diagnosis.tracker import Item, Key
from vram.history import schema
from vram.history.file import DamagedRow
from vram.history.things import plain, thing_key
from vram.ledger.processes import identity
from vram.model.hold import Identity
from vram.model.ledger import Holder
from vram.model.process import Workload

_MAX_KNOWN = 4096
NOT_NAMED = -1
"""The uid of what no known process holds."""

# ---- what is held now ----


class OpenHold(Struct, eq=False, kw_only=True):
    """A row of ``hold``, and what is not in it.

    Its process *rests* while it does nothing, since the moment ``rests_from``; after a while it is idle.
    """

    id: int
    key: Key
    since: int
    gpu_key: Key
    topic: int
    members: frozenset[Identity | None]
    nbytes: int | None
    most_bytes: int | None
    pid: int | None = None
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    program: int | None = None
    idle: bool = False
    rests: bool = False
    rests_from: int = 0
    rests_from_ms: int = 0

    def take_holder(self, holder: Holder | None, program: int | None) -> None:
        self.pid, self.uid = (holder.pid, holder.uid) if holder else (None, None)
        self.user, self.command = (plain(holder.user), plain(holder.command)) if holder else (None, None)
        self.program = program

    @property
    def is_charged(self) -> bool:
        return self.topic in (schema.PROCESS, schema.TOGETHER)

    @property
    def is_leftover(self) -> bool:
        return self.topic in schema.LEFTOVER_TOPICS


def load(connection: sqlite3.Connection, gpu_keys: dict[int, Key]) -> Iterator[OpenHold]:
    """Everything in the file that has no end. One that was idle still is."""
    rows = connection.execute(
        "SELECT hold.id, gpu, topic, since, kind, code, others, user, command, pid, started_at, dead_pid,"
        " nbytes, most_bytes, program, uid, (SELECT boot_ms FROM moment WHERE id = idle_from),"
        " (SELECT step.nbytes FROM step WHERE hold = hold.id ORDER BY moment DESC LIMIT 1),"
        " EXISTS (SELECT 1 FROM step WHERE hold = hold.id)"
        " FROM hold LEFT JOIN program ON program.id = hold.program WHERE until IS NULL"
    ).fetchall()
    for row in rows:
        is_sound = (
            all(isinstance(each, int) for each in row[:4])
            and row[4] in schema.KINDS_BY_NUMBER
            and all(each is None or isinstance(each, str) for each in row[5:9])
            and all(each is None or isinstance(each, int) for each in row[9:])
        )
        if not is_sound:
            raise DamagedRow("it has values that were never written to it")
        number, gpu, topic, since, kind, code, others, user, command, pid, started_at, *rest = row
        dead_pid, nbytes, most_bytes, program, uid, idle_from_ms, latest, has_changed = rest
        gpu_key = gpu_keys.get(gpu, (gpu, None))
        who = None if pid is None else (pid, started_at)
        yield OpenHold(
            id=number,
            key=thing_key(topic, gpu_key, schema.KINDS_BY_NUMBER[kind], who, dead_pid, code),
            since=since,
            gpu_key=gpu_key,
            topic=topic,
            members=_members(topic, who, others),
            nbytes=latest if has_changed else nbytes,
            most_bytes=most_bytes,
            pid=pid,
            uid=uid,
            user=user,
            command=command,
            program=program,
            idle=idle_from_ms is not None,
            rests_from_ms=idle_from_ms or 0,
        )


def who_columns(holder: Holder | None) -> tuple[int | None, int | None]:
    """Pid and start time of *holder*, for its row."""
    return (holder.pid, holder.started_at) if holder else (None, None)


def others_text(item: Item) -> str | None:
    """Pids and start times of those who hold it besides its holder, as ``7:120,8``."""
    others: list[Identity] = [(pid, None) for pid in item.co_holders]
    if item.members:
        others = sorted((each for each in item.members if each and each != identity(item.holder)), key=str)
    words = (f"{pid}" if started is None else f"{pid}:{started}" for pid, started in others)
    return ",".join(words) or None


def _members(topic: int, who: Identity | None, others: str | None) -> frozenset[Identity | None]:
    """Those of whom one must still be there for it to be the same memory."""
    if topic not in (schema.EXPORTED, schema.TOGETHER):
        return frozenset()
    return frozenset((*identities(others), *((who,) if who else ())))


def identities(others: str | None) -> Iterator[Identity]:
    """What others_text() wrote."""
    for word in (others or "").split(","):
        pid, _, started = word.partition(":")
        if pid.isdecimal() and (started.isdecimal() or not started):
            yield int(pid), int(started) if started else None


# ---- who ran what: a user, a command and a workload are written once, however often they run ----


class ProgramTable:
    """Finds and writes the rows of ``program``; the last thousands are remembered."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[object, ...], int] = {}

    def number(self, holder: Holder | None) -> int | None:
        """The row of what *holder* runs; None where nothing is known of it."""
        if holder is None or (holder.command is None and holder.user is None):
            return None
        workload = None
        if holder.workload != Workload():
            workload = msgspec.json.encode(_plain_workload(holder.workload)).decode()
        row = (holder.uid, plain(holder.user), plain(holder.command), workload)
        known = self._known.get(row)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[row] = self._find(row)
        return known

    def drop_unused(self, numbers: set[int]) -> None:
        """Delete those of *numbers* that no hold refers to any more."""
        before = self._connection.total_changes
        self._connection.executemany(
            "DELETE FROM program WHERE id = ? AND NOT EXISTS (SELECT 1 FROM hold WHERE program = program.id)",
            [(number,) for number in numbers],
        )
        if self._connection.total_changes > before:
            self._known.clear()

    def _find(self, row: tuple[object, ...]) -> int:
        digest = _digest(row)
        found = self._connection.execute(
            "SELECT id, uid, user, command, workload FROM program WHERE digest = ?", (digest,)
        ).fetchall()
        for number, *values in found:
            if tuple(values) == row:
                return int(number)
        made = self._connection.execute(
            "INSERT INTO program (digest, uid, user, command, workload) VALUES (?, ?, ?, ?, ?)",
            (digest, *row),
        )
        assert made.lastrowid is not None
        return made.lastrowid


def _plain_workload(workload: Workload) -> dict[str, str]:
    """What is known of a workload, as text that the file can hold."""
    said = msgspec.structs.asdict(workload)
    return {name: plain(str(value)) or "" for name, value in said.items() if value is not None}


def _digest(row: tuple[object, ...]) -> int:
    return int.from_bytes(blake2b(repr(row).encode(), digest_size=8).digest(), "big", signed=True)


# ---- byte-seconds: what was held, what of it by idle processes, what was left behind ----


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
