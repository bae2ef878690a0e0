"""PyTorch with the driver's own pool (backend:cudaMallocAsync): one figure a line.

What the pool keeps unused is not told. A limit that nobody set is printed as 2^64 bytes. ComfyUI, which
switches this backend on by itself, passes on the first words alone.
"""

from __future__ import annotations

import re

from vram.model.oom import Amount, Reading
from vram.oom.sizes import SIZE, amount

NAME = "pytorch"
NEEDLES: tuple[bytes, ...] = (b"Allocation on device",)
START = re.compile(
    r"OutOfMemoryError:\s+Allocation\s+on\s+device\b(?:\s+(?P<named>\d+)\b)?"
    r"|Allocation\s+on\s+device\s+(?P<gpu>\d+)\s+would\s+exceed\s+allowed\s+memory"
)
_FIGURES = re.compile(
    rf"[^\n]*\n[^\n]*Currently\s+allocated\s*:\s+(?P<live>{SIZE})\s+Requested\s*:\s+(?P<asked>{SIZE})"
    rf"(?:\s+Device\s+limit\s*:\s+(?P<total>{SIZE}))?(?:\s+Free\s+\(according\s+to\s+CUDA\)\s*:\s+(?P<free>{SIZE}))?"
    rf"(?:\s+PyTorch\s+limit\s+\([^)\n]*\)\s*:\s+(?P<limit>{SIZE}))?"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    number = found["named"] or found["gpu"]
    told = _FIGURES.match(text, found.end())
    figures = {name: amount(words) for name, words in told.groupdict().items()} if told else {}
    reading = Reading(
        dialect=NAME,
        wording="cudaMallocAsync",
        gpu=int(number) if number else None,
        asked=figures.get("asked"),
        total=figures.get("total"),
        free=figures.get("free"),
        live=figures.get("live"),
        limit=_bound(figures.get("limit"), figures.get("total")),
        signs=("driver-pool",),
    )
    return reading, told.end() if told else found.end()


def _bound(limit: Amount | None, total: Amount | None) -> Amount | None:
    """A limit that binds: below what the GPU has."""
    return limit if limit and total and limit.nbytes < total.nbytes else None
