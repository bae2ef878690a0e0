"""CuPy's memory pool: what was asked for, what the pool has, and a limit where one is set."""

from __future__ import annotations

import re

from vram.model.oom import Amount, Reading
from vram.oom.sizes import amount

NAME = "cupy"
NEEDLES: tuple[bytes, ...] = (b"memory allocating", b"memory to allocate")
_BYTES = r"[\d,]+\s+bytes"
START = re.compile(
    # XLA says the same of the host's memory, behind its own code.
    rf"(?<!EXHAUSTED: )Out\s+of\s+memory\s+allocating\s+(?P<asked>{_BYTES})"
    rf"(?:\s+\(allocated\s+so\s+far:\s+(?P<live>{_BYTES})(?:,\s+limit\s+set\s+to:\s+(?P<limit>{_BYTES}))?)?"
    rf"|out\s+of\s+memory\s+to\s+allocate\s+(?P<asked_once>{_BYTES})"
    rf"(?:\s+\(total\s+(?P<sum>{_BYTES})(?:,\s+limit\s+set\s+to\s+(?P<limit_once>{_BYTES}))?)?"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    asked = amount(found["asked"] or found["asked_once"])
    live = amount(found["live"])
    total = amount(found["sum"])
    if total and asked:  # before version 7 the sum contained what was asked for
        live = Amount(max(0, total.nbytes - asked.nbytes))
    reading = Reading(
        dialect=NAME,
        wording="since 7" if found["asked"] else "before 7",
        asked=asked,
        live=live,
        limit=amount(found["limit"] or found["limit_once"]),
    )
    return reading, found.end()
