"""Find messages in a log of any size, read once from front to back in constant memory.

Nearly all of a log is not about memory. So it is searched for a few byte strings (``ANCHORS``), and only the
lines around those are decoded. A log may also be nothing but messages: each line is cleaned once, and what
was just recognised is not recognised again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from vram.model.oom import OomMessage
from vram.oom.dialects import Dialect, cuda, host, libraries, pytorch, serving, sticky, tensorflow_jax
from vram.oom.passage import Lines, Passage
from vram.oom.programs import language_of, program_of

# The particular before the general: CUDA's own words are part of many other messages.
DIALECTS: tuple[Dialect, ...] = (
    pytorch.mps,
    pytorch.driver_pool,
    pytorch.allocator,
    pytorch.triton,
    serving.vllm,
    serving.sglang,
    serving.tgi,
    libraries.paddle,
    libraries.catboost,
    libraries.cuda_jl,
    serving.tensorrt_llm,
    serving.llama_cpp,
    libraries.cupy,
    tensorflow_jax.xla,
    tensorflow_jax.tensorflow,
    tensorflow_jax.bfc,
    libraries.rmm,
    libraries.numba,
    libraries.pycuda,
    cuda.nccl,
    cuda.libraries,
    serving.tensorrt,
    cuda.bar1,
    host.host,
    cuda.cuda,
    sticky.sticky_error,
    sticky.xid,
)
NEEDLES = tuple(dict.fromkeys(needle for dialect in DIALECTS for needle in dialect.needles))
# The first line of every message has one of these, too. The whole log is searched for each: few words are
# found faster, and long ones.
ANCHORS = (
    *(b"lloc", b"emory", b"rror", b"illed", b"CUDA_ERROR", b"ALLOC_FAILED", b"LOCATION_FAILED"),
    *(b"GPUassert", b"unspecified launch", b"buffer object", b"NVRM: Xid", b"xhausted", b"Dst tensor"),
)
MAX_WORD_LENGTH = max(map(len, (*NEEDLES, *ANCHORS)))
# After so many lines in a row with an anchor and without a message, needles are looked for instead: logs of
# training often have "memory" in every line.
MAX_IN_VAIN = 64
PORTION = 256 << 10
BEHIND = 8 << 10
AHEAD = 8 << 10
# How far above a message a program may have said what it found at its start, and in how many lines.
FAR_BEHIND = 64 << 10
MAX_FAR_LINES = 100
MAX_LINE_LENGTH = 4 << 10
# How far the beginning of a message may reach beyond its first line: terminals wrap.
WRAPPED = 400
_NEEDLES_AS_TEXT = tuple((dialect, tuple(map(bytes.decode, dialect.needles))) for dialect in DIALECTS)
_MAX_EXCERPT_LENGTH = 900
_MAX_LEAD_LENGTH = 160
# How many texts are remembered: of 8 KiB each, and some with the 8 KiB above.
REMEMBERED = 512


class FoundMessage(NamedTuple):
    """One message, and the number of the line that it begins in."""

    reading: OomMessage
    line: int


class Readable(Protocol):
    """What a log must offer."""

    def read(self, most: int, /) -> bytes: ...


def find_messages(stream: Readable, *, remembered: int = REMEMBERED) -> Iterator[FoundMessage]:
    """Find every message in *stream*, in the order of the log; so many texts are *remembered*."""
    window = _Window(remembered)
    while portion := stream.read(PORTION):
        window.add(portion)
        yield from window.search(final=False)
    yield from window.search(final=True)


class _Window:
    """The part of the log in memory: what was just read, and as much before it as a message may need."""

    def __init__(self, remembered: int) -> None:
        self._bytes = b""
        self._done = 0  # every message that begins before this offset was found
        self._searched = 0  # every anchor that ends before this offset was found
        self._counted = 0  # lines were counted up to this offset
        self._line = 1  # the number of the line at that offset
        self._in_vain = 0  # the lines that were last examined and had no message
        self._lines = Lines(b"")
        self._recogniser = Recogniser(remembered)

    def add(self, portion: bytes) -> None:
        keep = max(0, max(self._done, self._searched - MAX_WORD_LENGTH) - FAR_BEHIND)
        self._count_lines(keep)
        self._bytes = self._bytes[keep:] + portion
        self._done -= keep
        self._searched -= keep
        self._counted -= keep
        self._lines = Lines(self._bytes)

    def search(self, *, final: bool) -> Iterator[FoundMessage]:
        """Yield the messages that are in memory as a whole."""
        end = len(self._bytes) if final else len(self._bytes) - AHEAD
        begin = max(0, self._done, self._searched - MAX_WORD_LENGTH)
        hits = _Hits(self._bytes, begin, end)
        while (hit := hits.next_from(max(begin, self._done), exact=self._in_vain >= MAX_IN_VAIN)) is not None:
            yield from self._examine(hit)
        self._searched = max(self._searched, end)

    def _examine(self, hit: int) -> Iterator[FoundMessage]:
        """Yield the messages that begin in the line of *hit*, and go on after them."""
        begin = self._lines.start_of_line(hit, max(0, hit - MAX_LINE_LENGTH, self._done))
        limit = hit + AHEAD
        self._in_vain += 1
        head = self._lines.head(begin, limit, WRAPPED)
        if not may_begin_in(head):
            following = self._lines.offset_after(begin, 1, limit)
            # A line without end is left in steps: a message may begin further on in it.
            self._done = max(hit + 1, following if following > hit else limit - MAX_LINE_LENGTH)
            return
        text = self._lines.text(begin, limit)
        passage = Passage(
            head,
            text,
            lambda: self._lines.above(begin, BEHIND),
            lambda words: self._lines.above_with(begin, FAR_BEHIND, words, MAX_FAR_LINES),
        )
        found = self._recogniser.recognise(passage)
        if found.readings:
            self._in_vain = 0
            self._count_lines(begin)
        for reading in found.readings:
            yield FoundMessage(reading, self._line)
        following = self._lines.offset_after(begin, found.lines, limit)
        self._done = max(hit + 1, following if following > hit else min(limit, len(self._bytes)))

    def _count_lines(self, offset: int) -> None:
        if offset > self._counted:
            self._line += self._bytes.count(b"\n", self._counted, offset)
            self._counted = offset


class _Hits:
    """Where anchors are in a part of a log, or where the needles are."""

    def __init__(self, log: bytes, begin: int, end: int) -> None:
        self._log, self._end = log, end
        self._anchors = self._find(ANCHORS, begin)
        self._needles: dict[bytes, int] | None = None

    def next_from(self, begin: int, *, exact: bool) -> int | None:
        """The first anchor at *begin* or later, if *exact* the first needle; None where there is none."""
        if not exact or not self._anchors:
            return self._next(self._anchors, begin)
        if self._needles is None:
            self._needles = self._find(NEEDLES, begin)
        return self._next(self._needles, begin)

    def _find(self, words: tuple[bytes, ...], begin: int) -> dict[bytes, int]:
        return {word: at for word in words if (at := self._log.find(word, begin, self._end)) >= 0}

    def _next(self, places: dict[bytes, int], begin: int) -> int | None:
        for word in [word for word, at in places.items() if at < begin]:
            places[word] = self._log.find(word, begin, self._end)
            if places[word] < 0:
                del places[word]
        return min(places.values(), default=None)


class Recognised(NamedTuple):
    """What the messages say that begin in the first line of a passage, and how many lines they take."""

    readings: tuple[OomMessage, ...]
    lines: int


class Recogniser:
    """Recognises passages. Programs that retry repeat themselves: what was just recognised is remembered."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        # By the head: the passage, whose log above is known where a dialect looked there, and the result.
        self._known: dict[str, tuple[Passage, Recognised]] = {}

    def recognise(self, passage: Passage) -> Recognised:
        """Return what messages that begin in the first line of *passage* say."""
        if known := self._known.get(passage.head):
            last, result = known
            if last.says_the_same_as(passage):
                return result
        found = list(_recognise(passage))
        lines = passage.text.count("\n", 0, found[-1][1]) + 1 if found else 1
        result = Recognised(tuple(reading for reading, _ in found), lines)
        passage.close()
        self._known[passage.head] = (passage, result)
        if len(self._known) > self._remembered:
            del self._known[next(iter(self._known))]
        return result


def _recognise(passage: Passage) -> Iterator[tuple[OomMessage, int]]:
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
        named = replace(reading, program=program_of(reading, passage, end), excerpt=" ".join(words.split()))
        yield replace(named, language=language_of(named, passage, end)), end
        at = max(end, at + 1)


@lru_cache(maxsize=1024)
def may_begin_in(head: str) -> bool:
    """Whether a message may begin in *head*: the first line of a passage and a little more."""
    return any(dialect.start.search(head) for dialect in _candidates(head))


@lru_cache(maxsize=64)
def _candidates(head: str) -> tuple[Dialect, ...]:
    """The dialects that have a needle in *head*."""
    words = " ".join(head.split())
    return tuple(dialect for dialect, needles in _NEEDLES_AS_TEXT if _has_any(words, needles))


def _has_any(words: str, needles: tuple[str, ...]) -> bool:
    for needle in needles:  # noqa: SIM110 - any() over a generator takes three times as long
        if needle in words:
            return True
    return False


# A traceback shows the statement that raised: the error itself comes at the traceback's end.
_RAISES = re.compile(r"\braise\s+[\w.]+\(\s*[rf]{0,2}[\"']$")


def _is_source(text: str, at: int) -> bool:
    """Whether the words at *at* are quoted by a line of the program's source."""
    return _RAISES.search(text, max(text.rfind("\n", 0, at) + 1, at - 100), at) is not None


def _first(passage: Passage, at: int) -> tuple[OomMessage, int, int] | None:
    for dialect in _candidates(passage.head):
        if not dialect.start.search(passage.head, at):
            continue
        found = dialect.start.search(passage.text, at)
        while found and found.start() <= passage.line_ends:
            known = None if _is_source(passage.text, found.start()) else dialect.parse(found, passage)
            if known:
                return known[0], found.start(), max(known[1], found.end())
            found = dialect.start.search(passage.text, found.end())
    return None
