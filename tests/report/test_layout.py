"""Bars whose cells add up, and long command lines that lose their middle, never their width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vram.report.layout import apportion, shorten

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


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(0, 60))
def test_the_result_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width


def test_both_ends_stay() -> None:
    shown = shorten("python train.py --data /very/long/path/to/some/dataset --seed 42", 40)
    assert shown.startswith("python train.py")
    assert shown.endswith("--seed 42")
    assert shown.count("…") == 1


def test_what_fits_is_untouched() -> None:
    assert shorten("python", 6) == "python"


def test_wide_characters_count_double() -> None:
    assert shorten("学習学習学習", 7, mark=".") == "学習.習"
