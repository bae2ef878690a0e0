"""Forecasts: which GPU will be full, when, at which rate, and whose memory it is that grows."""

from __future__ import annotations

from msgspec import Struct


class Growth(Struct, frozen=True, kw_only=True):
    """How fast memory grows, in bytes a second; between the least and the most is likely.

    The figures are those of the lowest levels, what a program comes down to again and again, in blocks of
    ``apart_s`` over ``span_s``.
    """

    bytes_per_s: float
    least_bytes_per_s: float
    most_bytes_per_s: float
    span_s: float
    apart_s: float


class GrowingHold(Struct, frozen=True, kw_only=True):
    """What of one hold grows on one GPU: by its first holder, if one is visible.

    ``full_in_s``: when its GPU would be full if this one alone went on like that. ``line``: where it grows,
    as the recorder has it; None where nothing is recorded.
    """

    nbytes: int
    growth: Growth
    full_in_s: float
    pid: int | None = None
    started_at: int | None = None
    user: str | None = None
    command: str | None = None
    line: str | None = None


class Forecast(Struct, frozen=True, kw_only=True):
    """When a GPU, or one MIG instance of it, will be full if what grows goes on growing.

    ``full_in_s`` is counted from the reading, and lies between ``earliest_s`` and ``latest_s``.
    ``free_bytes`` is what is free when all that was held at once lately is held again. ``growing``: the
    fastest first.
    """

    gpu: int
    place: str
    free_bytes: int
    full_in_s: float
    earliest_s: float
    latest_s: float
    growth: Growth
    growing: tuple[GrowingHold, ...]
