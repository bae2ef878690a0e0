"""The fewest processes, least harm first, and none more than the goal needs."""

from __future__ import annotations

import pytest
from msgspec import Struct

from vram.reclaim.selection import fewest


class Option(Struct, frozen=True):
    pids: tuple[int, ...]
    nbytes: int
    harm: int = 0


def options(*sizes_and_harm: tuple[int, int]) -> list[Option]:
    return [Option((pid,), nbytes, harm) for pid, (nbytes, harm) in enumerate(sizes_and_harm, 1)]


@pytest.mark.parametrize(
    ("among", "goal", "chosen"),
    [
        ([(4, 0), (2, 0)], 2, [2]),
        ([(4, 0), (2, 0)], 3, [1]),
        ([(4, 0), (2, 0)], 6, [1, 2]),
        ([(4, 0), (2, 0)], 7, [1, 2]),
        # The harmless one is taken first, and is not needed once the harmful one is: exactly enough, or more.
        ([(1, 0), (5, 1)], 5, [2]),
        ([(1, 0), (6, 1)], 5, [2]),
        ([(1, 0), (4, 1)], 5, [1, 2]),
        ([], 5, []),
    ],
)
def test_no_more_than_the_goal_needs(among, goal, chosen):
    picked = fewest(options(*among), goal, harm=lambda each: each.harm)
    assert [each.pids[0] for each in picked] == chosen


def test_what_is_excluded_is_no_option_any_more():
    picked = fewest(options((2, 0), (2, 0)), 4, harm=lambda each: each.harm, excludes=lambda a, b: True)
    assert len(picked) == 1
