"""A bar's cells always add up, and nothing that is there vanishes from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vram.report.bar import apportion

SHARES = st.lists(st.integers(0, 2**40), min_size=1, max_size=11)


@given(SHARES.filter(any), st.integers(1, 300))
def test_cells_sum_to_the_width(shares: list[int], width: int) -> None:
    assert sum(apportion(shares, width)) == width


@given(SHARES, st.integers(11, 300))
def test_what_is_not_zero_is_seen_and_what_is_zero_is_not(shares: list[int], width: int) -> None:
    cells = apportion(shares, width)
    assert [cell > 0 for cell in cells] == [share > 0 for share in shares]


def test_an_empty_gpu_has_no_bar() -> None:
    assert apportion([0, 0], 80) == [0, 0]
