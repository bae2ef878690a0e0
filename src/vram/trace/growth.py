"""Is what one place left behind growing, or was it loaded once and kept?

A trace alone cannot tell whether memory that was never freed is still needed. What it can tell is whether a
place went on to the end: weights and buffers are loaded at some time and then stay as they are; a leak is
made again and again, as long as the program works. A program that ends right after loading looks like one
that leaks.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_SAMPLES = 3
QUARTERS = 3
MAX_EXIT_NS = 100_000_000


def end_of_work(last_allocation: int, end: int) -> int:
    """When a program's work ended: with its last allocation, where only its exit came after that."""
    return last_allocation if end - last_allocation <= MAX_EXIT_NS else end


def quarter(time: int, first: int, end: int) -> int:
    """In which quarter of the time from *first* to *end* something was made, from 0."""
    if time <= first or end <= first:
        return 0
    return min(3, (time - first) // ((end - first) // 4 + 1))


def is_growing(
    *, count: int, quarters: int, first: int, last: int, since: int, end: int, freed: bool
) -> bool:
    """Whether *count* allocations of a place, made from *first* to *last* and never freed, go on to the end.

    *since* is when the place first allocated anything, *end* the end of the work, *quarters* has a bit
    for each quarter of that time in which some of them were made. They must

    - be at least three, from at least three quarters;
    - where others of the same place were freed, begin in the first quarter: else the place keeps its latest
      ones only, and frees the older ones;
    - reach the last tenth of that time, or be no further from the end than three times their usual distance.
    """
    if count < MIN_SAMPLES or quarters.bit_count() < QUARTERS or (freed and not quarters & 1):
        return False
    usual = (last - first) // (count - 1)
    return end - last <= max((end - since) // 10, 3 * usual)


def times_grow(times: Sequence[int], *, since: int, end: int, freed: bool) -> bool:
    """The same, where each allocation's time is known."""
    if len(times) < MIN_SAMPLES:
        return False
    quarters = 0
    for time in times:
        quarters |= 1 << quarter(time, since, end)
    first, last = min(times), max(times)
    return is_growing(
        count=len(times), quarters=quarters, first=first, last=last, since=since, end=end, freed=freed
    )
