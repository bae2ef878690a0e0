"""What is held now: rows of ``hold`` without an end, and how they are found again at a start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from msgspec import Struct

from vram.diagnosis.watched import Key
from vram.history import schema
from vram.history.file import DamagedRow
from vram.history.things import Thing, thing_key
from vram.model.hold import Identity
from vram.model.ledger import Holder


class OpenHold(Struct, eq=False, kw_only=True):
    """A row of ``hold``, and what is not in it.

    Its process *rests* while it does nothing, since the moment ``rests_from``; after a while it is idle.
    """

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
    command: str | None = None
    program: int | None = None
    idle: bool = False
    rests: bool = False
    rests_from: int = 0
    rests_from_ms: int = 0

    @property
    def is_leftover(self) -> bool:
        return self.topic in schema.LEFTOVER_TOPICS


def load(
    connection: sqlite3.Connection, gpu_keys: dict[int, Key]
) -> Iterator[tuple[tuple[object, ...], OpenHold]]:
    """Everything in the file that has no end, with the key of what it is. One that was idle still is."""
    rows = connection.execute(
        "SELECT hold.id, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, nbytes,"
        " most_bytes, program, uid, user, (SELECT boot_ms FROM moment WHERE id = idle_from),"
        " (SELECT step.nbytes FROM step WHERE hold = hold.id ORDER BY moment DESC LIMIT 1),"
        " EXISTS (SELECT 1 FROM step WHERE hold = hold.id), command"
        " FROM hold LEFT JOIN program ON program.id = hold.program WHERE until IS NULL"
    ).fetchall()
    for row in rows:
        _require_sound(row)
        number, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, *rest = row
        nbytes, most_bytes, program, uid, user, idle_from_ms, latest, has_changed, command = rest
        gpu_key = gpu_keys.get(gpu, (gpu, None))
        who = None if pid is None else (pid, started_at)
        yield (
            thing_key(topic, gpu_key, schema.KINDS_BY_NUMBER[kind], who, dead_pid, code),
            OpenHold(
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
                command=command,
                program=program,
                idle=idle_from_ms is not None,
                rests_from_ms=idle_from_ms or 0,
            ),
        )


def _require_sound(row: Sequence[object]) -> None:
    """Raise DamagedRow where a row has values that were never written to it."""
    number, gpu, topic, kind, since, pid, started_at, dead_pid, code, others, *rest = row
    nbytes, most_bytes, program, uid, user, idle_from_ms, latest, _, command = rest
    numbers = (pid, started_at, dead_pid, nbytes, most_bytes, program, uid, idle_from_ms, latest)
    is_sound = (
        all(isinstance(each, int) for each in (number, gpu, topic, since))
        and kind in schema.KINDS_BY_NUMBER
        and all(each is None or isinstance(each, int) for each in numbers)
        and all(each is None or isinstance(each, str) for each in (code, others, user, command))
    )
    if not is_sound:
        raise DamagedRow("it has values that were never written to it")


def who_columns(holder: Holder | None) -> tuple[int | None, int | None]:
    """Pid and start time of *holder*, for its row."""
    return (holder.pid, holder.started_at) if holder else (None, None)


def others_text(thing: Thing) -> str | None:
    """Pids and start times of the other holders, as ``7:120,8``."""
    words = (f"{pid}" if started is None else f"{pid}:{started}" for pid, started in thing.others)
    return ",".join(words) or None


def _members(topic: int, who: Identity | None, others: str | None) -> frozenset[Identity | None]:
    """Those of whom one must still be there for it to be the same memory."""
    if topic not in (schema.EXPORTED, schema.TOGETHER):
        return frozenset()
    return frozenset((*_identities(others or ""), *((who,) if who else ())))


def _identities(text: str) -> Iterator[Identity]:
    for word in text.split(","):
        pid, _, started = word.partition(":")
        if pid.isdecimal() and (started.isdecimal() or not started):
            yield int(pid), int(started) if started else None
