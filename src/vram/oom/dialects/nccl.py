"""NCCL: its buffers lie outside every framework's pool, and are asked for late.

Unless NCCL_DEBUG is set, only its last error is told, by whoever called it.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.sizes import amount

NAME = "nccl"
NEEDLES: tuple[bytes, ...] = (b"NCCL WARN", b"Last error:")
START = re.compile(
    r"(?P<last>Last\s+error:)\s+Cuda\s+failure\s+(?:\d+\s+)?'out\s+of\s+memory'"
    r"|(?:\[(?P<gpu>\d+)\]\s+[\w/.]+:\d+\s+(?:\(\w+\)\s+)?)?NCCL\s+WARN\s+"
    r"(?:Cuda\s+failure\s+(?:\d+\s+)?'out\s+of\s+memory'"
    r"|Failed\s+to\s+(?:CUDA|Cuda)\s+(?P<host>host\s+)?(?:calloc|alloc)(?:\s+async)?\s+(?P<asked>\d+)\s+bytes)"
)
_AND = re.compile(
    r"[^\n]*\n(?:[^\n]*\n){0,2}?[^\n]*?Failed\s+to\s+(?:CUDA|Cuda)\s+(?P<host>host\s+)?(?:calloc|alloc)"
    r"(?:\s+async)?\s+(?P<asked>\d+)\s+bytes"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    more = None if found["asked"] else _AND.match(text, found.end())
    told = more or found
    reading = Reading(
        dialect=NAME,
        wording="calloc" if told["asked"] else "last error" if found["last"] else "failure",
        where="pinned" if told["host"] else "device",
        gpu=int(found["gpu"]) if found["gpu"] else None,
        asked=amount(told["asked"]),
        signs=("workspace",),
    )
    return reading, told.end()
