"""One series of sizes, and whether it grows: its lowest value in each block of time, at eight scales.

A program that works in steps comes back to a lowest level after each; one that leaks comes back to a higher
one. A block of the next scale is two of this one: a slow leak under large steps shows in long blocks, a fast
one in short ones, and what is remembered does not grow with time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

from vram.model.forecast import Growth

MIN_BLOCKS, MAX_BLOCKS = 8, 16
SCALES = 8
# Of Kendall's test, in standard deviations. By chance alone, eight blocks meet the first once in 40,000
# times; a growth that was found stays until less than the second is left of it.
_TO_FIND, _TO_KEEP = 3.4, 2.3
_INTERVAL = 1.96
_MAX_CHANGE = 4.0
# Growth ends where the newest of so many blocks is not above the oldest.
_NEWEST = 3


class _Scale:
    """The last blocks of one length; ``half`` is the first of the two that make the next longer block."""

    __slots__ = ("growth", "half", "highest_before", "lows")

    def __init__(self) -> None:
        self.lows = array("q")
        self.highest_before = 0
        """The highest of those that are no longer among ``lows``."""
        self.half: int | None = None
        self.growth: Growth | None = None

    def push(self, low: int) -> None:
        self.lows.append(low)
        if len(self.lows) > MAX_BLOCKS:
            self.highest_before = max(self.highest_before, self.lows.pop(0))

    def begin_anew(self) -> None:
        """Forget how it grew, and not how high it was."""
        self.highest_before = max((self.highest_before, *self.lows))
        self.lows, self.growth = array("q"), None


class Series:
    """The sizes of one thing over time. ``growth`` is how it grows; None: the data do not show that it does.

    Time is counted in blocks: their number must never go back.
    """

    __slots__ = ("_block", "_block_s", "_low", "_scales", "growth", "nbytes")

    def __init__(self, block: int, nbytes: int, block_s: float) -> None:
        self.nbytes = nbytes
        self.growth: Growth | None = None
        self._block, self._block_s, self._low = block, block_s, nbytes
        self._scales: list[_Scale] = []  # none while it has never changed: most never do

    def add(self, block: int, nbytes: int) -> None:
        """Take its size in *block*, which goes on. Since the last time it was as it was then."""
        if not self._scales:
            if nbytes == self.nbytes:
                return
            if (
                block == self._block
            ):  # the first one: it was not watched from its beginning, and does not count
                self.nbytes = nbytes
                return
            self._scales = [_Scale() for _ in range(SCALES)]
            self._push_run(self._block + 1, block - self._block - 1)
            self._block, self._low = block, nbytes
        elif block != self._block:
            self._push(0, self._block, self._low)
            self._push_run(self._block + 1, block - self._block - 1)
            self._block, self._low = block, nbytes
            self.growth = next((each.growth for each in self._scales if each.growth is not None), None)
        self._low, self.nbytes = min(self._low, nbytes), nbytes
        if self.growth is not None and self._has_fallen():
            self._end_growth()

    @property
    def lowest_lately(self) -> int:
        """The lowest level of the last blocks."""
        return min(self._scales[0].lows[-MIN_BLOCKS:], default=self.nbytes) if self._scales else self.nbytes

    def _push(self, scale: int, number: int, low: int) -> None:
        """Add a block to *scale*, and to the longer ones that end with it."""
        for at in range(scale, SCALES):
            mine = self._scales[at]
            mine.push(low)
            self._judge(at)
            if number % 2 == 0:
                mine.half = low
                return
            if mine.half is None:  # the series began in the middle of the longer block
                return
            low, mine.half, number = min(low, mine.half), None, number // 2

    def _push_run(self, first: int, count: int) -> None:
        """The same for *count* blocks in which nothing changed, however many these are."""
        low = self.nbytes
        for at, mine in enumerate(self._scales):
            for _ in range(min(count, MAX_BLOCKS + 1)):
                mine.push(low)
            if count:
                self._judge(at)
            if count and first % 2:
                if mine.half is not None and at + 1 < SCALES:
                    self._push(at + 1, first // 2, min(low, mine.half))
                first, count = first + 1, count - 1
            if count % 2:
                mine.half = low
            elif count:
                mine.half = None
            first, count = first // 2, count // 2

    def _judge(self, at: int) -> None:
        mine = self._scales[at]
        known, span_s = mine.growth, self._block_s * 2**at
        mine.growth = find_growth(mine.lows, span_s, mine.highest_before, is_known=known is not None)
        if at == 0 and known is not None and mine.growth is None and _is_even(mine.lows[:-_NEWEST]):
            # What rose with every block and does so no longer has stopped: longer blocks would learn it late.
            for longer in self._scales[1:]:
                longer.begin_anew()

    def _has_fallen(self) -> bool:
        """Whether it is now below where it was some blocks ago: a trim, or the end of a step."""
        found = next(each for each in self._scales if each.growth is not None)
        return self._low < found.lows[-_NEWEST - 1]

    def _end_growth(self) -> None:
        self.growth = None
        for each in self._scales:
            each.growth = None


def find_growth(
    lows: Sequence[int], block_s: float, highest_before: int = 0, *, is_known: bool = False
) -> Growth | None:
    """How the lowest levels of consecutive blocks grow; None where the data do not show that they do.

    They must rise in almost every pair of blocks (Kendall), still rise now, and be higher than ever before:
    what a program has held and released before, it may hold and release again. The rate is the median of all
    slopes (Theil and Sen), or of those of the later half where that is less.
    """
    count = len(lows)
    if count < MIN_BLOCKS or lows[-1] <= lows[-_NEWEST]:
        return None
    highest = max(lows[-_NEWEST:])
    if highest < highest_before or highest < max(lows):
        return None
    slopes = sorted(_slopes(lows))
    rising = sum(slope > 0 for slope in slopes) - sum(slope < 0 for slope in slopes)
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if rising < deviation * (_TO_KEEP if is_known else _TO_FIND):
        return None
    aside = (len(slopes) - _INTERVAL * deviation) / 2
    least, most = slopes[max(0, int(aside))], slopes[min(len(slopes) - 1, int(len(slopes) - aside))]
    lately = _median(sorted(_slopes(lows[count // 2 :])))
    before = _median(sorted(_slopes(lows[: (count + 1) // 2])))
    rate, least, most = min(_median(slopes), lately), min(least, lately), max(most, lately)
    if least <= 0:
        return None
    if before > 0:  # as much as it changed, it may change again
        again = lately * min(_MAX_CHANGE, max(1 / _MAX_CHANGE, lately / before))
        least, most = min(least, again), max(most, again)
    return Growth(
        bytes_per_s=rate / block_s,
        least_bytes_per_s=least / block_s,
        most_bytes_per_s=most / block_s,
        span_s=count * block_s,
        apart_s=block_s,
    )


def _is_even(lows: Sequence[int]) -> bool:
    latest = lows[-MIN_BLOCKS:]
    return all(before < after for before, after in pairwise(latest))


def _slopes(values: Sequence[int]) -> list[float]:
    return [
        (later - value) / apart
        for at, value in enumerate(values)
        for apart, later in enumerate(values[at + 1 :], 1)
    ]


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
