"""Windows of a trace: what was live when they began, their highest moment, what grew and what churns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from vram.model.trace import BLOCKS, KINDS_BY_NUMBER, ON_GPU, HeldBefore, Site, Trend, Window, WindowPlace
from vram.trace.native import SiteRow, WindowRow

FRAMEWORKS = {"torch block": "torch", "cupy block": "cupy", "jax buffer": "jax", "framework block": "other"}

_MIN_RISE = 1 / 200
"""Of a window's highest moment: levels that differ by less are the same."""


def trend(lowest: Sequence[int], highest: int, places: Iterable[WindowPlace]) -> Trend:
    """What became of a window, from the *lowest* of each of its quarters.

    A program that works in steps comes back to the same level: its highest moments say nothing. A level that
    rises in every quarter does, even where no single place can be accused.
    """
    if any(place.growing for place in places):
        return "growing"
    steps = [after - before for before, after in pairwise(lowest)]
    if abs(lowest[-1] - lowest[0]) < max(1, highest * _MIN_RISE):
        return "steady"
    if min(steps) > 0:
        return "growing"
    return "shrinking" if max(steps) < 0 else "steady"


def largest_first(places: Iterable[WindowPlace]) -> tuple[WindowPlace, ...]:
    return tuple(sorted(places, key=lambda each: (-each.site.nbytes, -each.end_nbytes, -each.made_nbytes)))


def held_before(before: Iterable[HeldBefore], gpu: int | None, process: int | None = None) -> int | None:
    """What was held before recording began; None where it is unknown.

    Several sources may speak of the same memory: the driver's figure has what a framework reports in it.
    """
    most: dict[int, int] = {}
    for held in before:
        if held.gpu == gpu and process in (None, held.process):
            most[held.process] = max(most.get(held.process, 0), held.nbytes)
    return sum(most.values()) if most else None


class WindowBuilder:
    """Windows from the reader's tables: the driver's memory, and the blocks that are in the trace."""

    def __init__(
        self,
        rows: Sequence[SiteRow],
        site: Callable[[SiteRow, int, int], Site],
        is_growing: Callable[[SiteRow], bool],
    ) -> None:
        self._site, self._is_growing = site, is_growing
        self._rows: dict[tuple[int, int], list[SiteRow]] = {}
        """By GPU and kind of block; 0 stands for the driver's memory."""
        for row in rows:
            kind = KINDS_BY_NUMBER[row.kind]
            if kind in ON_GPU or kind in BLOCKS:
                self._rows.setdefault((row.gpu, row.kind if kind in BLOCKS else 0), []).append(row)

    def window(
        self, row: WindowRow, gpu: int | None, before: Sequence[HeldBefore], duration_ns: int
    ) -> Window:
        kind = KINDS_BY_NUMBER[row.kind]
        places = largest_first(self._places(self._rows.get((row.gpu, row.kind), ())))
        return Window(
            process=None,
            gpu=gpu,
            framework=FRAMEWORKS.get(kind),
            begin_ns=min(row.begin_ns, duration_ns),
            end_ns=duration_ns,
            before_nbytes=None if kind in BLOCKS else held_before(before, gpu),
            base_nbytes=row.base_nbytes,
            highest_nbytes=row.highest_nbytes,
            highest_ns=min(row.highest_ns, duration_ns),
            end_nbytes=row.end_nbytes,
            lowest=row.lowest,
            trend=trend(row.lowest, row.highest_nbytes, places),
            places=places,
        )

    def _places(self, rows: Iterable[SiteRow]) -> Iterable[WindowPlace]:
        for row in rows:
            then = row.window
            made = row.made - then.earlier_made
            if not (made or then.base_count or row.live_count):
                continue
            freed = row.freed - then.earlier_freed
            yield WindowPlace(
                site=self._site(row, then.highest_count, then.highest_nbytes),
                base_count=then.base_count,
                base_nbytes=then.base_nbytes,
                end_count=row.live_count,
                end_nbytes=row.live_nbytes,
                made=made,
                made_nbytes=row.nbytes - then.earlier_nbytes,
                freed=freed,
                median_life_ns=row.median_life_ns if freed else None,
                growing=row.kept.number > 0 and self._is_growing(row),
            )
