"""RAPIDS' memory manager: its pool reached its maximum, or the driver had nothing left for it."""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.sizes import SIZE, amount

NAME = "rmm"
NEEDLES: tuple[bytes, ...] = (b"bad_alloc",)
START = re.compile(
    r"std::bad_alloc:\s+(?:out_of_memory:\s+)?(?:RMM\s+failure|CUDA\s+error)"
    r"(?:\s+\(failed\s+to\s+allocate\s+(?P<early>[\d,]+)\s+bytes\))?\s+at:?"
    r"(?P<rest>[^\n]*(?:\n[^\n]*)?)"
)
_ASKED = re.compile(rf"(?:failed\s+to\s+allocate|to\s+allocate|[Rr]equested)\s+({SIZE})")
_LIMIT = re.compile(rf"(?:[Mm]aximum\s+pool\s+size|limit)[^\n]*?\(?(?:max|limit)[=:\s]+({SIZE})")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    rest = found["rest"]
    asked = _ASKED.search(rest)
    limit = _LIMIT.search(rest)
    pool = re.search(r"[Mm]aximum\s+pool\s+size\s+exceeded|[Ee]xceeded\s+memory\s+limit", rest)
    host = re.search(r"pinned_(?:host_)?memory_resource|cudaHostAlloc|cudaMallocHost", rest)
    reading = Reading(
        dialect=NAME,
        wording="pool" if pool else "driver",
        where="pinned" if host else "device",
        asked=amount(asked.group(1)) if asked else amount(found["early"]),
        limit=amount(limit.group(1)) if limit else None,
        signs=("pool-maximum",) if pool else (),
    )
    return reading, found.end()
