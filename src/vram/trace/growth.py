"""Is what one place left behind growing, or was it loaded once and kept?

A trace alone cannot tell whether memory that was never freed is still needed. What it can tell is whether a
place went on to the end: weights and buffers are loaded at some time and then stay as they are; a leak is
made again and again, as long as the program works. A program that ends right after loading looks like one
that leaks.
"""

from __future__ import annotations

from collections.abc import Sequence

FEWEST = 3
QUARTERS = 3
"""Of the time from a place's first allocation to the end: in so many it must have made some."""


def quarter(time: int, first: int, end: int) -> int:
    """In which quarter of the time from *first* to *end* something was made, from 0."""
    if time < first or end <= first:
        return 0
    return min(3, (time - first) // ((end - first) // 4 + 1))


def is_growing(*, count: int, quarters: int, first: int, last: int, end: int) -> bool:
    """Whether *count* allocations from *first* to *last*, never freed, go on to the *end* of the recording.

    *quarters*: in how many of the quarters from *first* to *end* some were made. The latest must lie in the
    last tenth of that time, or no further from the end than three times their usual distance.
    """
    if count < FEWEST or quarters < QUARTERS:
        return False
    usual = (last - first) // (count - 1)
    return end - last <= max((end - first) // 10, 3 * usual)


def times_grow(times: Sequence[int], end: int) -> bool:
    """The same, where each allocation's time is known."""
    if len(times) < FEWEST:
        return False
    first, last = min(times), max(times)
    made = {quarter(time, first, end) for time in times}
    return is_growing(count=len(times), quarters=len(made), first=first, last=last, end=end)
