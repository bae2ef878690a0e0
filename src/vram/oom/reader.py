"""Find messages in a log of any size, read once from front to back in constant memory.

Nearly all of a log is not about memory. So each portion is first searched for a few short byte strings
(``PREFILTER``); where one is found, for the words that messages contain (``NEEDLES``); and only the
text around those is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from vram.model.oom import OomReading
from vram.oom.recognise import DIALECTS, Passage, recognise

NEEDLES = tuple(dict.fromkeys(needle for dialect in DIALECTS for needle in dialect.needles))
# Every line with a message has one of these; a portion without any is skipped. Long words are found faster.
PREFILTER = (
    *(b"lloc", b"emory", b"ALLOC", b"UDA_ERROR", b"illed", b"buffer object", b"Dst tensor"),
    *(b"-side assert trig", b"unspecified launch", b"CUDA_LAUNCH_BLOCKING"),
)
LONGEST_NEEDLE = max(map(len, NEEDLES))
PORTION = 256 << 10
BEHIND = 8 << 10
AHEAD = 8 << 10
LONGEST_LINE = 4 << 10


class FoundMessage(NamedTuple):
    """One message, and the number of the line that it begins in."""

    reading: OomReading
    line: int


class Readable(Protocol):
    """What a log must offer."""

    def read(self, most: int, /) -> bytes: ...


def find_messages(stream: Readable) -> Iterator[FoundMessage]:
    """Find every message in *stream*, in the order of the log."""
    window = _Window()
    while portion := stream.read(PORTION):
        window.add(portion)
        yield from window.search(final=False)
    yield from window.search(final=True)


class _Window:
    """The part of the log in memory: what was just read, and as much before it as a message may need."""

    def __init__(self) -> None:
        self._bytes = b""
        self._done = 0  # every message that begins before this offset was found
        self._searched = 0  # every needle that ends before this one was found
        self._line = 1  # the number of the line at offset 0

    def add(self, portion: bytes) -> None:
        keep = max(0, max(self._done, self._searched - LONGEST_NEEDLE) - BEHIND)
        self._line += self._bytes.count(b"\n", 0, keep)
        self._bytes = self._bytes[keep:] + portion
        self._done -= keep
        self._searched -= keep

    def search(self, *, final: bool) -> Iterator[FoundMessage]:
        """Yield the messages that are in memory as a whole."""
        end = len(self._bytes) if final else len(self._bytes) - AHEAD
        begin = max(0, self._done, self._searched - LONGEST_NEEDLE)
        for hit in _hits(self._bytes, begin, end) if begin < end else ():
            if hit >= self._done:
                yield from self._examine(hit)
        self._searched = max(self._searched, end)

    def _examine(self, hit: int) -> Iterator[FoundMessage]:
        begin = max(self._line_start(hit), hit - LONGEST_LINE, self._done)
        before = self._bytes[max(0, begin - BEHIND) : begin]
        found = Passage(before, self._bytes[begin : hit + AHEAD])
        known = list(recognise(found))
        for reading, _ in known:
            yield FoundMessage(reading, self._line + self._bytes.count(b"\n", 0, begin))
        # Decoding all that may follow is the costly part: most hits turn out to be nothing.
        lines = found.text.count("\n", 0, known[-1][1]) + 1 if known else 1
        self._done = max(self._done, self._after(begin, lines, hit))

    def _line_start(self, at: int) -> int:
        return max(self._bytes.rfind(b"\n", 0, at), self._bytes.rfind(b"\r", 0, at)) + 1

    def _after(self, begin: int, lines: int, hit: int) -> int:
        """Return where the line after the next *lines* begins; a line without end is left in steps."""
        at, furthest = begin, hit + AHEAD
        for _ in range(lines):
            ends = [
                found
                for found in (self._bytes.find(mark, at, furthest) for mark in (b"\n", b"\r"))
                if found >= 0
            ]
            if not ends:
                return min(furthest, len(self._bytes))
            at = min(ends) + 1
            if self._bytes[at - 1 : at + 1] == b"\r\n":
                at += 1
        return at


def _hits(log: bytes, begin: int, end: int) -> list[int]:
    """The offsets of all needles, in order."""
    if not any(log.find(word, max(0, begin - LONGEST_LINE), end + LONGEST_LINE) >= 0 for word in PREFILTER):
        return []
    found = []
    for needle in NEEDLES:
        at = log.find(needle, begin, end)
        while at >= 0:
            found.append(at)
            at = log.find(needle, at + len(needle), end)
    return sorted(found)
