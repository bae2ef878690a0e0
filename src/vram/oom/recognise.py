"""Which dialects a passage speaks: the first that understands a line has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from msgspec.structs import replace

from vram.model.oom import Reading
from vram.oom.dialects import (
    bar1,
    bfc,
    broken,
    cuda,
    cupy,
    host,
    libraries,
    llama_cpp,
    nccl,
    numba,
    pycuda,
    pytorch,
    pytorch_async,
    pytorch_mps,
    rmm,
    tensorflow,
    tensorrt,
    triton,
    vllm,
    xla,
)
from vram.oom.passage import Passage

EXCERPT = 900
LEAD = 160


class Dialect(Protocol):
    """A module of ``dialects``: how a message begins, and what can be read from there on.

    One of ``NEEDLES`` stands in every message that ``START`` matches, in its first line where nothing
    wrapped it.

    ``read`` returns the reading and where in *text* the message ends, or None where it only looked
    like one. *before* is what stood in the log above.
    """

    NAME: str
    NEEDLES: tuple[bytes, ...]
    START: re.Pattern[str]

    def read(self, found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None: ...


# The particular before the general: CUDA's own words stand inside many other messages.
DIALECTS: tuple[Dialect, ...] = (
    pytorch_mps,
    pytorch_async,
    pytorch,
    triton,
    vllm,
    llama_cpp,
    cupy,
    xla,
    tensorflow,
    bfc,
    rmm,
    numba,
    pycuda,
    nccl,
    libraries,
    tensorrt,
    bar1,
    host,
    cuda,
    broken,
)


_SPOKEN = tuple((dialect, tuple(map(bytes.decode, dialect.NEEDLES))) for dialect in DIALECTS)


def recognise(passage: Passage) -> Iterator[tuple[Reading, int]]:
    """Return what the first line of *passage* begins to say, and where in its text each one ends."""
    at = 0
    while at <= passage.line_ends:
        known = _first(passage, at)
        if known is None:
            return
        reading, begin, end = known
        line = passage.text.rfind("\n", 0, begin) + 1
        words = passage.text[line if begin - line < LEAD else begin : min(end, begin + EXCERPT)]
        yield replace(reading, excerpt=" ".join(words.split())), end
        at = max(end, at + 1)


def _first(passage: Passage, at: int) -> tuple[Reading, int, int] | None:
    for dialect, needles in _SPOKEN:
        if not any(needle in passage.words for needle in needles):
            continue
        if not dialect.START.search(passage.head, at):
            continue
        found = dialect.START.search(passage.text, at)
        while found and found.start() <= passage.line_ends:
            known = dialect.read(found, passage.text, passage.before)
            if known:
                return known[0], found.start(), max(known[1], found.end())
            found = dialect.START.search(passage.text, found.end())
    return None
