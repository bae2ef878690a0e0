"""The tables of the history, and how an older file becomes one of this version.

A *moment* is one reading; everything else refers to moments by number. An *era* is a time in which the wall
clock was not set: its offset turns a moment's boot time into a time of day. A *hold* is memory that
a process held, from ``since`` to before ``until``; a *step* is a change of its size. Its process was idle
for ``idle_ms`` in all, and is again since the moment ``idle_from``. A *sample* is one GPU's memory by kind,
valid until the next one. ``usage`` has byte-seconds by user and hour, which stay exact when the detail is
gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from vram.model.ledger import KINDS, Kind

APPLICATION_ID = 0x7672616D  # "vram"

# Numbers in the file; a kind keeps its number for good.
KIND_NUMBERS: dict[Kind, int] = {
    "process": 1,
    "context": 2,
    "live": 3,
    "cached": 4,
    "fragmented": 5,
    "orphaned": 6,
    "exported": 7,
    "hidden": 8,
    "windows": 9,
    "guest": 10,
    "unattributed": 11,
    "overhead": 12,
    "reserved": 13,
    "unreported": 14,
    "unassigned": 15,
    "free": 16,
    "outside": 17,
    "preallocated": 18,
    "cpu": 19,
    "withheld": 20,
}
KINDS_BY_NUMBER = {number: kind for kind, number in KIND_NUMBERS.items()}

SAMPLED: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in ("free", "outside"))
"""The columns of a sample. What is free is the rest of the total; what is outside frameworks is known only of
processes that were asked, and the service asks none."""

# What a hold is about.
PROCESS, GHOST, EXPORTED, TOGETHER, UNATTRIBUTED, HIDDEN = range(6)
LEFTOVER_TOPICS = (GHOST, EXPORTED, UNATTRIBUTED)

# Flags of a hold.
BEGAN_UNSEEN, ENDED_UNSEEN = 1, 2

OPEN_SPAN = 0
"""The span of a hold that has no end yet; others have the bit length of their duration in moments."""

_VERSION_1 = """
CREATE TABLE era (
  id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, offset_ms INTEGER NOT NULL, first INTEGER NOT NULL);
CREATE TABLE moment (
  id INTEGER PRIMARY KEY, era INTEGER NOT NULL, boot_ms INTEGER NOT NULL, pause INTEGER);
CREATE INDEX moment_pause ON moment (id) WHERE pause = 1;
CREATE TABLE gpu (
  id INTEGER PRIMARY KEY, number INTEGER NOT NULL, uuid TEXT, mig TEXT, name TEXT NOT NULL);
CREATE TABLE program (
  id INTEGER PRIMARY KEY, digest INTEGER NOT NULL, uid INTEGER, user TEXT, command TEXT, workload TEXT);
CREATE INDEX program_digest ON program (digest);
CREATE TABLE hold (
  id INTEGER PRIMARY KEY, gpu INTEGER NOT NULL, topic INTEGER NOT NULL, kind INTEGER NOT NULL,
  since INTEGER NOT NULL, until INTEGER, span INTEGER NOT NULL, flags INTEGER NOT NULL,
  pid INTEGER, started_at INTEGER, program INTEGER, dead_pid INTEGER, code TEXT, others TEXT,
  nbytes INTEGER, most_bytes INTEGER, idle_ms INTEGER NOT NULL DEFAULT 0, idle_from INTEGER);
CREATE INDEX hold_span ON hold (gpu, span, since);
CREATE INDEX hold_until ON hold (until) WHERE until IS NOT NULL;
CREATE INDEX hold_program ON hold (program);
CREATE INDEX hold_leftover ON hold (since) WHERE topic IN (1, 2, 4);
CREATE TABLE step (
  hold INTEGER NOT NULL, moment INTEGER NOT NULL, nbytes INTEGER,
  PRIMARY KEY (hold, moment)) WITHOUT ROWID;
CREATE TABLE sample (
  gpu INTEGER NOT NULL, moment INTEGER NOT NULL, total INTEGER, used INTEGER, leftover INTEGER,
  reserved INTEGER, unassigned INTEGER, unreported INTEGER, overhead INTEGER, process INTEGER,
  context INTEGER, live INTEGER, cached INTEGER, fragmented INTEGER, orphaned INTEGER, exported INTEGER,
  unattributed INTEGER, hidden INTEGER, guest INTEGER, windows INTEGER,
  PRIMARY KEY (gpu, moment)) WITHOUT ROWID;
CREATE INDEX sample_unknown ON sample (gpu, moment) WHERE total IS NULL;
CREATE TABLE usage (
  hour INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT,
  held INTEGER NOT NULL, idle INTEGER NOT NULL, leftover INTEGER NOT NULL,
  PRIMARY KEY (hour, uid)) WITHOUT ROWID;
CREATE TABLE progress (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

_VERSION_2 = "ALTER TABLE sample ADD COLUMN preallocated INTEGER"
_VERSION_3 = "ALTER TABLE sample ADD COLUMN cpu INTEGER; ALTER TABLE sample ADD COLUMN withheld INTEGER"

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3)
"""What leads from each version to the next; the first makes a new file."""
VERSION = len(MIGRATIONS)


def version(connection: sqlite3.Connection) -> int:
    """The version of the file's tables; zero: it has none yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether the file is a history, or empty."""
    marked = connection.execute("PRAGMA application_id").fetchone()[0]
    if marked == APPLICATION_ID:
        return True
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return bool(marked == 0 and tables == 0)


def is_intact(connection: sqlite3.Connection) -> bool:
    """Whether the file has exactly our tables: nothing that runs by itself, nothing that is missing."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        upgrade(made)
        return _tables(connection) == _tables(made)


def _tables(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    return set(found)


def upgrade(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the tables to the newest version, in one transaction: all of it happens, or nothing."""
    at = version(connection)
    if at >= len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for script in migrations[at:]:
            for statement in script.split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
