"""What a part of a log says, by the first dialect that knows it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from vram.model.oom import OomReading
from vram.oom.dialects import (
    Dialect,
    array_libraries,
    cuda,
    host,
    llama_cpp,
    paddle,
    pytorch,
    serving,
    sticky,
    tensorflow_jax,
)
from vram.oom.passage import Passage
from vram.oom.programs import program_of

# The particular before the general: CUDA's own words are part of many other messages.
DIALECTS: tuple[Dialect, ...] = (
    pytorch.mps,
    pytorch.driver_pool,
    pytorch.allocator,
    pytorch.triton,
    serving.vllm,
    serving.sglang,
    serving.tgi,
    paddle.paddle,
    llama_cpp.llama_cpp,
    array_libraries.cupy,
    tensorflow_jax.xla,
    tensorflow_jax.tensorflow,
    tensorflow_jax.bfc,
    array_libraries.rmm,
    array_libraries.numba,
    array_libraries.pycuda,
    cuda.nccl,
    cuda.libraries,
    serving.tensorrt,
    cuda.bar1,
    host.host,
    cuda.cuda,
    sticky.sticky_error,
    sticky.xid,
)
_NEEDLES = tuple((dialect, tuple(map(bytes.decode, dialect.needles))) for dialect in DIALECTS)
_MAX_EXCERPT_LENGTH = 900
_MAX_LEAD_LENGTH = 160
# How many texts are remembered: of 8 KiB each, and some with the 8 KiB above.
REMEMBERED = 512


class Recognised(NamedTuple):
    """What the messages say that begin in the first line of a passage, and how many lines they take."""

    readings: tuple[OomReading, ...]
    lines: int


class Recogniser:
    """Recognises passages. Programs that retry repeat themselves: what was just recognised is remembered."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        # By the head: the text, the log above where a dialect looked there, and the result.
        self._known: dict[str, tuple[str, str | None, Recognised]] = {}

    def recognise(self, passage: Passage) -> Recognised:
        """Return what messages that begin in the first line of *passage* say."""
        if known := self._known.get(passage.head):
            text, before, result = known
            if text == passage.text and (before is None or before == passage.before):
                return result
        found = list(_recognise(passage))
        lines = passage.text.count("\n", 0, found[-1][1]) + 1 if found else 1
        result = Recognised(tuple(reading for reading, _ in found), lines)
        self._known[passage.head] = (passage.text, passage.known_before, result)
        if len(self._known) > self._remembered:
            del self._known[next(iter(self._known))]
        return result


def _recognise(passage: Passage) -> Iterator[tuple[OomReading, int]]:
    """Yield what each message says, and where in the text it ends."""
    at = 0
    # A second message is looked for in the rest of the line only: what follows is examined for itself.
    while at < passage.line_ends and (at == 0 or _candidates(passage.text[at : passage.line_ends])):
        known = _first(passage, at)
        if known is None:
            return
        reading, begin, end = known
        line = passage.text.rfind("\n", 0, begin) + 1
        words = passage.text[
            line if begin - line < _MAX_LEAD_LENGTH else begin : min(end, begin + _MAX_EXCERPT_LENGTH)
        ]
        program = program_of(reading, passage, end)
        yield replace(reading, program=program, excerpt=" ".join(words.split())), end
        at = max(end, at + 1)


@lru_cache(maxsize=1024)
def may_begin_in(head: str) -> bool:
    """Whether a message may begin in *head*: the first line of a passage and a little more."""
    return any(dialect.start.search(head) for dialect in _candidates(head))


@lru_cache(maxsize=64)
def _candidates(head: str) -> tuple[Dialect, ...]:
    """The dialects that have a needle in *head*."""
    words = " ".join(head.split())
    return tuple(dialect for dialect, needles in _NEEDLES if _has_any(words, needles))


def _has_any(words: str, needles: tuple[str, ...]) -> bool:
    for needle in needles:  # noqa: SIM110 - any() over a generator takes three times as long
        if needle in words:
            return True
    return False


def _first(passage: Passage, at: int) -> tuple[OomReading, int, int] | None:
    for dialect in _candidates(passage.head):
        if not dialect.start.search(passage.head, at):
            continue
        found = dialect.start.search(passage.text, at)
        while found and found.start() <= passage.line_ends:
            known = dialect.read(found, passage)
            if known:
                return known[0], found.start(), max(known[1], found.end())
            found = dialect.start.search(passage.text, found.end())
    return None
