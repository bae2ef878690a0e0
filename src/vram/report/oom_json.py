"""``vram oom --json``: what every message says, and which kind it is. Unknown is null."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.oom import Case
from vram.report.json import encode


class OomReport(Struct, frozen=True, kw_only=True):
    """``nbytes`` were read. ``unkept`` messages are beyond the most that are told apart."""

    schema: Literal[2] = 2
    nbytes: int
    cases: tuple[Case, ...]
    unkept: int


def report(cases: tuple[Case, ...], unkept: int, nbytes: int) -> bytes:
    return encode(OomReport(nbytes=nbytes, cases=cases, unkept=unkept))
