"""A bar whose cells add up: shares of a width, none of them rounded away."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(shares: Sequence[int], width: int) -> list[int]:
    """Divide *width* cells by *shares*, so that the cells sum to the width.

    Whatever is not zero gets at least one cell while there are enough: 500 MiB of a 140 GiB
    GPU must not vanish. The largest shares pay for that.
    """
    total = sum(shares)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    cells = _largest_remainders(shares, total, width)
    for at, share in enumerate(shares):
        if share > 0 and cells[at] == 0:
            richest = max(range(len(cells)), key=cells.__getitem__)
            if cells[richest] < 2:
                break
            cells[richest] -= 1
            cells[at] = 1
    return cells


def _largest_remainders(shares: Sequence[int], total: int, width: int) -> list[int]:
    cells = [share * width // total for share in shares]
    rests = sorted(range(len(shares)), key=lambda at: shares[at] * width % total, reverse=True)
    for at in rests[: width - sum(cells)]:
        cells[at] += 1
    return cells
