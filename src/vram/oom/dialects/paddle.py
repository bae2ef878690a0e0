"""PaddlePaddle's messages."""

from __future__ import annotations

import re

from vram.model.oom import Amount, OomReading
from vram.oom.dialects import Match, Parsed, dialect
from vram.oom.passage import Passage
from vram.oom.sizes import amount
from vram.oom.sums import ANY_GPU

_NUMBER = r"[\d.]+[kMGTPE]?B"
_FRACTION = re.compile(r"FLAGS_fraction_of_gpu_memory_to_use\s+is\s+([\d.]*\d)\s+now")
_LIMIT = re.compile(r"FLAGS_gpu_memory_limit_mb`?\s+is\s+(\d+)")


@dialect(
    "paddle",
    needles=(b"memory error on GPU", b"memory error on CPU", b"memory error on NPU"),
    start=re.compile(
        rf"Out\s+of\s+memory\s+error\s+on\s+GPU\s+(?P<gpu>\d+)\.\s+Cannot\s+allocate\s+(?P<asked>{_NUMBER})\s+"
        rf"(?:CUDA\s+managed\s+|GPU\s+)?memory(?:\s+on\s+GPU\s+\d+)?"
        rf"(?:,\s+(?P<used>{_NUMBER})\s+memory\s+has\s+been\s+allocated)?"
        rf"(?:,?(?:\s+and)?\s+available\s+memory\s+is\s+(?:only\s+)?(?P<free>{_NUMBER}))?"
    ),
)
def paddle(found: Match, passage: Passage) -> Parsed:
    """What was asked for, what is free, and what is in use on the GPU, by whomever.

    Paddle calls that "allocated", and works it out as the GPU's total less what is free, or as the limit
    less what is free where FLAGS_gpu_memory_limit_mb is set.
    """
    used, free = _figure(found["used"]), _figure(found["free"])
    body = passage.text[found.end() : found.end() + 800]
    limit, share = _LIMIT.search(body), _FRACTION.search(body)
    total = Amount(used.nbytes + free.nbytes, used.slack + free.slack) if used and free else None
    known = total is not None and 0 < total.nbytes < ANY_GPU
    reading = OomReading(
        dialect="paddle",
        wording="limited" if limit else "fraction" if share else "driver",
        gpu=int(found["gpu"]),
        asked=_figure(found["asked"]),
        total=total if known and not limit else None,
        free=free if known or used is None else None,
        live=used if limit and known else None,
        limit=amount(f"{limit.group(1)} MiB") if limit else None,
        utilization=float(share.group(1)) if share else None,
    )
    ends = [found.end(), *(found.end() + each.end() for each in (limit, share) if each)]
    return reading, max(ends)


def _figure(words: str | None) -> Amount | None:
    return amount(words.replace("kB", "KB")) if words else None
