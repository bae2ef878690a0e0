"""Judgement: each kind looks at the figures, the certain first; where none can tell, the last one says so."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from vram.model.oom import Judgement, OomKind, Reading
from vram.oom import remedies, sums
from vram.oom.kinds import (
    bar1,
    broken,
    cached,
    context,
    fragmented,
    ghost,
    host,
    limit,
    on_chip,
    other_process,
    too_large,
    unknown,
)
from vram.oom.sums import Sums


class Kind(Protocol):
    """A module of ``kinds``: an id that never changes, a manual page, and a judgement."""

    ID: OomKind
    TITLE: str

    def judge(self, reading: Reading, worked: Sums) -> Judgement | None: ...


KINDS: tuple[Kind, ...] = (
    broken,
    on_chip,
    bar1,
    host,
    limit,
    cached,
    fragmented,
    too_large,
    ghost,
    other_process,
    context,
    unknown,
)


def judge(reading: Reading) -> Judgement:
    """Return which kind of out-of-memory *reading* is, with the arithmetic and what to do."""
    worked = sums.work_out(reading)
    for kind in KINDS:
        judgement = kind.judge(reading, worked)
        if judgement is not None:
            return replace(
                judgement,
                balance=sums.balance(reading, worked),
                remedies=remedies.ordered(judgement.remedies),
            )
    raise AssertionError("the last kind judges everything")
