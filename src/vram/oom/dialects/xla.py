"""JAX and XLA: at run time from a preallocated pool, at compile time against the device's memory.

Without a GPU they allocate in the host's memory, and word it otherwise.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.oom.sizes import SIZE, amount

NAME = "xla"
NEEDLES: tuple[bytes, ...] = (
    b"trying to allocate",
    b"memory allocating",
    b"Failed to allocate",
    b"memory space hbm",
    b"Attempting to",
)
START = re.compile(
    rf"Out\s+of\s+memory\s+while\s+trying\s+to\s+allocate\s+(?P<asked>{SIZE}|\d+)"
    rf"|RESOURCE_EXHAUSTED:\s+Out\s+of\s+memory\s+allocating\s+(?P<host>{SIZE})"
    rf"|Failed\s+to\s+allocate\s+request\s+for\s+(?P<request>{SIZE})"
    r"(?:\s+on\s+device\s+ordinal\s+(?P<gpu>\d+))?"
    r"|Ran\s+out\s+of\s+memory\s+in\s+memory\s+space\s+hbm\.\s+(?:Used\s+(?P<used>[\d.]+[KMGT])\s+of\s+"
    r"(?P<total>[\d.]+[KMGT])\s+hbm)?"
    rf"|Attempting\s+to\s+(?:reserve|allocate)\s+(?P<program>[\d.]+[KMGT])[^\n]*?There\s+are\s+"
    r"(?P<free>[\d.]+[KMGT])\s+free"
)
_ENTRY = re.compile(r"XLA_PYTHON_CLIENT_(\w+)=(\S+)")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    wanted = found["asked"] or found["request"] or found["host"] or found["used"] or found["program"]
    reading = Reading(
        dialect=NAME,
        wording=_wording(found),
        where="host" if found["host"] else "device",
        gpu=int(found["gpu"]) if found["gpu"] else None,
        asked=amount(wanted),
        total=amount(found["total"]),
        free=amount(found["free"]),
        signs=tuple(f"{name.lower()}={value}" for name, value in _ENTRY.findall(before))[-3:],
    )
    return reading, found.end()


def _wording(found: re.Match[str]) -> str:
    if found["asked"]:
        return "run time"
    if found["request"] or found["host"]:
        return "request"
    return "compile time" if found["used"] else "hbm"
