"""The points of the timeline by GPU, without holes: where nothing changed, the last level goes on."""

from __future__ import annotations

from itertools import pairwise
from math import gcd
from typing import NamedTuple

from vram.model.trace import TraceView

MAX_STRETCHES = 8192
"""In the whole time; a view has about two thousand."""


class Level(NamedTuple):
    """The live bytes from ``time_ns`` to the next one."""

    time_ns: int
    highest: int
    lowest: int
    last: int


def lanes(view: TraceView) -> dict[int | None, list[Level]]:
    """The levels of each GPU, in the order of the GPUs."""
    points: dict[int | None, list[Level]] = {use.gpu: [] for use in view.gpus}
    for point in view.timeline:
        level = Level(point.time_ns, point.highest, point.lowest, point.last)
        points.setdefault(point.gpu, []).append(level)
    stretch = _stretch_ns(view)
    return {
        gpu: _continued(sorted(levels), stretch, view.duration_ns) for gpu, levels in points.items() if levels
    }


def _stretch_ns(view: TraceView) -> int:
    """How long a point lasts. The view does not say; its times are multiples of it."""
    times = sorted({point.time_ns for point in view.timeline})
    end = max(view.duration_ns, times[-1] if times else 0, 1)
    common = gcd(*times)
    if common * MAX_STRETCHES >= end:
        return common
    return min((later - time for time, later in pairwise(times)), default=end)


def _continued(levels: list[Level], stretch_ns: int, duration_ns: int) -> list[Level]:
    found: list[Level] = []
    following = [level.time_ns for level in levels[1:]] + [duration_ns]
    for level, next_ns in zip(levels, following, strict=True):
        found.append(level)
        end_ns = level.time_ns + stretch_ns
        if end_ns < next_ns and not level.highest == level.lowest == level.last:
            found.append(Level(end_ns, level.last, level.last, level.last))
    return found
