"""PyTorch on Apple GPUs: one budget for all, set by a high watermark."""

from __future__ import annotations

import re

from vram.model.oom import Amount, Reading
from vram.oom.sizes import SIZE, amount

NAME = "pytorch-mps"
NEEDLES: tuple[bytes, ...] = (b"MPS backend out",)
START = re.compile(
    rf"MPS\s+backend\s+out\s+of\s+memory\s+\(MPS\s+allocated:\s+(?P<live>{SIZE}),\s+other\s+allocations:\s+"
    rf"(?P<other>{SIZE}),\s+max\s+allowed:\s+(?P<limit>{SIZE})\)\.\s+Tried\s+to\s+allocate\s+(?P<asked>{SIZE})"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    live, other = amount(found["live"]), amount(found["other"])
    held = Amount(live.nbytes + other.nbytes, live.slack + other.slack) if live and other else live
    reading = Reading(
        dialect=NAME,
        wording="allowed",
        asked=amount(found["asked"]),
        live=held,
        limit=amount(found["limit"]),
    )
    return reading, found.end()
