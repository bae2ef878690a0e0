"""Triton kernels: the memory that ran out is on the chip, a few hundred kilobytes per block."""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.sizes import amount

NAME = "triton"
NEEDLES: tuple[bytes, ...] = (b"f resource",)
START = re.compile(
    r"out\s+of\s+resource:\s+(?P<what>shared\s+memory|tensor\s+memory|registers),?\s+Required:\s+(?P<asked>\d+),\s+"
    r"Hardware\s+limit:\s+(?P<limit>\d+)"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    reading = Reading(
        dialect=NAME,
        wording=" ".join(found["what"].split()),
        where="on-chip",
        asked=amount(found["asked"]),
        limit=amount(found["limit"]),
    )
    return reading, found.end()
