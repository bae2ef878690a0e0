"""Finds what was held in a range of moments without reading all that ever was.

A hold with an end has a span: the bit length of its duration in moments. One of span s lasted fewer than 2**s
moments, so that those over a range began fewer than that before it: a short range of the index for each span.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from vram.history.schema import OPEN_SPAN


def overlapping(
    connection: sqlite3.Connection,
    columns: str,
    first: int,
    last: int,
    gpus: Sequence[int] | None = None,
    least_span: int = 1,
    where: str = "1",
) -> Iterator[Any]:
    """*columns* of everything held at a moment from *first* to *last*, on *gpus* (None: all).

    Of what has ended, only holds of *least_span* and more: shorter ones are the most, and matter least.
    """
    if gpus is None:
        gpus = [row[0] for row in connection.execute("SELECT id FROM gpu")]
    newest = connection.execute("SELECT max(id) FROM moment").fetchone()[0] or 0
    here = f"SELECT {columns} FROM hold WHERE gpu = ? AND span = ? AND since <= ?"
    for gpu in gpus:
        yield from connection.execute(f"{here} AND {where}", (gpu, OPEN_SPAN, last)).fetchall()
        for span in range(least_span, newest.bit_length() + 1):
            yield from connection.execute(
                f"{here} AND since > ? AND until > ? AND {where}",
                (gpu, span, last, first - (1 << span), first),
            ).fetchall()
