"""The dump that TensorFlow's and XLA's pool (best fit with coalescing) writes before they give up."""

from __future__ import annotations

import re

from vram.model.oom import Amount, Reading
from vram.oom.sizes import SIZE, amount

NAME = "bfc"
NEEDLES: tuple[bytes, ...] = (b"in-use chunks", b"] Stats:")
START = re.compile(
    r"Sum\s+Total\s+of\s+in-use\s+chunks:|Stats:\s*\n\s*Limit:\s+\d[\d.]*\s*(?:[KMGT]i?B|B)?\s*\n\s*InUse:"
    r"|(?:total_region_allocated_bytes_|Total\s+bytes\s+in\s+pool|Total\s+size\s+in\s+pool):"
)
_STAT = r"[ \t]+(\d[\d.,]*(?:[ \t]*(?:[KMGT]i?B|B))?)"
_FIELDS = {
    "sum": re.compile(rf"Sum\s+Total\s+of\s+in-use\s+chunks:\s+({SIZE})"),
    "pool": re.compile(
        rf"(?:total_region_allocated_bytes_|Total\s+(?:bytes|size)\s+in\s+pool):\s+({SIZE}|\d+)"
    ),
    "bound": re.compile(rf"memory_limit_:\s+({SIZE}|\d+)"),
    "limit": re.compile(rf"Limit:{_STAT}"),
    "live": re.compile(rf"\bInUse:{_STAT}"),
    "largest": re.compile(rf"LargestFreeBlock:{_STAT}"),
}


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    body = text[found.start() : found.start() + 1500]
    matches = {name: pattern.search(body) for name, pattern in _FIELDS.items()}
    figures = {name: amount(match.group(1)) for name, match in matches.items() if match}
    live = figures.get("live") or figures.get("sum")
    pool = figures.get("pool")
    idle = Amount(max(0, pool.nbytes - live.nbytes), pool.slack + live.slack) if pool and live else None
    largest = figures.get("largest")
    reading = Reading(
        dialect=NAME,
        wording="dump",
        live=live,
        idle=idle,
        limit=figures.get("limit") or figures.get("bound"),
        largest_free=largest if largest and largest.nbytes else None,
    )
    return reading, found.start() + max(match.end() for match in matches.values() if match)
