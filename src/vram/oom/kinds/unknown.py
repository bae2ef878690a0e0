"""unknown: the message does not say enough to tell

What it is
----------
Raw CUDA, Numba and PyCUDA say "out of memory" and nothing else; messages get cut; sometimes the figures
themselves show that it would have fit. Guessing would be worse than saying so.

How it is told
--------------
A figure that the arithmetic needs is missing; which one, and how to get it, stands with the answer.

Remedies
--------
Look at the machine while it is still full (`vram why`, `vram oom --live`), and let vram.on_oom() record the
next one.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading
from vram.oom.remedies import change, join_live, look, record
from vram.oom.sums import Sums, said, shortfall

ID: OomKind = "unknown"
TITLE = "cannot be told from this message"

NEEDED = {
    "asked": "how much was asked for",
    "total": "how large the GPU is",
    "free": "how much of it was free",
    "live": "how much this program itself had in use",
}


def judge(reading: Reading, worked: Sums) -> Judgement:
    missing = tuple(words for name, words in NEEDED.items() if getattr(reading, name) is None)
    return Judgement(
        kind=ID,
        certainty="unknown",
        title=TITLE,
        cause=_cause(reading, missing),
        workings=shortfall(reading),
        missing=missing,
        remedies=(join_live(), look(reading), record(), *_contradiction(reading)),
    )


def _fitted(reading: Reading) -> bool:
    return (
        reading.asked is not None and reading.free is not None and reading.free.nbytes >= reading.asked.nbytes
    )


def _cause(reading: Reading, missing: tuple[str, ...]) -> str:
    if _fitted(reading):
        return (
            f"{said(reading.asked)} were asked for and {said(reading.free)} were free when the"
            " message was printed."
            " Something let go in between, or the driver refused for another reason: on Windows"
            " and WSL2 the commit"
            " limit of the host, in a container a limit of its own."
        )
    if not missing:
        return (
            "All figures are there, and none of them stands out: several small shares add up to"
            " what is missing."
        )
    return "The GPU was out of memory. Whose the memory was cannot be told without more figures."


def _contradiction(reading: Reading) -> tuple[Remedy, ...]:
    if not _fitted(reading):
        return ()
    return (change("Try again: if it fits now, somebody else was there for a moment."),)
