"""Memory over time: bounded series for GPUs and processes, and how they are drawn in one line."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Sequence

SPAN_S = 600.0
MAX_POINTS = 240
_GLYPHS = "▁▂▃▄▅▆▇█"
_ASCII_GLYPHS = "_.:-=+*#"


class History:
    """The last ten minutes of every series. A point is the most that was in use during its time.

    Points are a few seconds apart: a shorter interval of readings adds no points, so that what is
    remembered stays the same size however long and however often the host is read.
    """

    def __init__(self, every_s: float, span_s: float = SPAN_S) -> None:
        self.step_s = max(every_s, span_s / MAX_POINTS)
        self._most = max(2, int(span_s / self.step_s))
        self._series: dict[Hashable, array[int]] = {}
        self._began: float | None = None

    def add(self, now: float, figures: dict[Hashable, int]) -> bool:
        """Note *figures* at the time *now*; series that are not among them have ended and are dropped.

        Says whether a new point has begun.
        """
        fresh = self._began is None or now - self._began >= self.step_s
        if fresh:
            self._began = now
        for key in self._series.keys() - figures.keys():
            del self._series[key]
        for key, nbytes in figures.items():
            points = self._series.get(key)
            if points is None:
                self._series[key] = array("q", (nbytes,))
            elif fresh:
                points.append(nbytes)
                if len(points) > self._most:
                    del points[0]
            elif nbytes > points[-1]:
                points[-1] = nbytes
        return fresh

    def points(self, key: Hashable) -> Sequence[int]:
        return self._series.get(key, ())

    def keys(self) -> Collection[Hashable]:
        return self._series.keys()


def sparkline(points: Sequence[int], width: int, top: int, *, ascii_only: bool = False) -> str:
    """Draw the last *points* in *width* cells, the newest on the right; *top* is a full cell."""
    glyphs = _ASCII_GLYPHS if ascii_only else _GLYPHS
    shown = points[-width:] if width > 0 else ()
    cells = "".join(_cell(each, top, glyphs) for each in shown)
    return cells.rjust(max(0, width))


def trend(points: Sequence[int], width: int, *, ascii_only: bool = False) -> str:
    """Draw *points* so that their most is three quarters of a cell: what is constant is no full block."""
    return sparkline(points, width, max(points, default=0) * 4 // 3, ascii_only=ascii_only)


def _cell(nbytes: int, top: int, glyphs: str) -> str:
    if nbytes <= 0 or top <= 0:
        return glyphs[0] if nbytes == 0 else " "
    return glyphs[min(len(glyphs) - 1, nbytes * len(glyphs) // (top + 1))]
