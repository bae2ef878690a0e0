"""Every row of measured behaviour, in the order of its tables."""

from __future__ import annotations

from rows import checkpoints, claims, figures, holders

TABLES = (holders.TABLE, claims.TABLE, checkpoints.TABLE, figures.TABLE)
ROWS = tuple(row for table in TABLES for row in table.rows)
