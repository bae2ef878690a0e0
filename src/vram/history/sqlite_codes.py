"""SQLite's result codes, by which an error of ``sqlite3`` says what happened.

Python has their names, and errors that carry their code, since 3.11. In 3.10 class and message tell.
"""

from __future__ import annotations

import sqlite3
import sys

ERROR, INTERRUPT, CORRUPT, FULL, CONSTRAINT, MISMATCH, FORMAT, NOTADB = 1, 9, 11, 13, 19, 20, 24, 26

# What 3.10's OperationalError says where the code is not ERROR: sqlite3ErrStr in SQLite's main.c.
_BY_MESSAGE = {"interrupted": INTERRUPT, "database or disk is full": FULL}
_OTHERS = (
    "Could not decode",  # Python's own
    "access permission denied",
    "attempt to write a readonly database",
    "database is locked",
    "database schema has changed",
    "database schema is locked",
    "database table is locked",
    "disk I/O error",
    "locking protocol",
    "query aborted",
    "unable to open database file",
)


def code_of(error: Exception) -> int:
    """The primary code of *error*; 0 where it has none, or one that is not named here."""
    if sys.version_info >= (3, 11):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, sqlite3.IntegrityError):
        return CONSTRAINT  # or MISMATCH
    if isinstance(error, sqlite3.OperationalError):
        return _BY_MESSAGE.get(str(error), 0 if str(error).startswith(_OTHERS) else ERROR)
    # CORRUPT and NOTADB; other classes are derived from this one.
    return CORRUPT if type(error) is sqlite3.DatabaseError else 0
