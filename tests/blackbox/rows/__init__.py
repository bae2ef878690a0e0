"""Every row of measured behaviour, in the order of its tables."""

from __future__ import annotations

from rows import claims, figures, giving_back, keepers

TABLES = (keepers.TABLE, claims.TABLE, giving_back.TABLE, figures.TABLE)
ROWS = tuple(row for table in TABLES for row in table.rows)
