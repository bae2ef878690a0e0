"""Who ran what: a user, a command and a workload are written once, however often they run."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b

import msgspec

from vram.history.things import plain
from vram.model.ledger import Holder
from vram.model.process import Workload

_MAX_KNOWN = 4096


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
