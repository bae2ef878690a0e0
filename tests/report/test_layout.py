"""Bars whose cells add up, and long command lines that lose their middle, never their width."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vram.report.layout import apportion, shorten

SHARES = st.lists(st.integers(0, 2**40), min_size=1, max_size=11)


@given(SHARES.filter(any), st.integers(1, 300))
def test_cells_sum_to_the_width(shares: list[int], width: int) -> None:
    assert sum(apportion(shares, width)) == width


@given(SHARES.filter(any), st.integers(1, 300))
def test_what_is_under_half_a_cell_has_none(shares: list[int], width: int) -> None:
    """One of thirteen cells for 5 MiB of 140 GiB would say 11 GiB."""
    for share, cells in zip(shares, apportion(shares, width), strict=True):
        under_half = 2 * share * width < sum(shares)
        assert cells == 0 or not under_half or share == max(shares)


@given(SHARES.filter(any), st.integers(22, 300))
def test_half_a_cell_is_seen(shares: list[int], width: int) -> None:
    for share, cells in zip(shares, apportion(shares, width), strict=True):
        assert cells > 0 or 2 * share * width < sum(shares)


def test_an_empty_gpu_has_no_bar() -> None:
    assert apportion([0, 0], 80) == [0, 0]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(0, 60))
def test_the_result_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width


@given(st.from_regex(r"(pid [0-9]{1,7}[ ,a-z]{0,9}){1,6}", fullmatch=True), st.integers(0, 60))
def test_a_number_is_there_as_a_whole_or_not_at_all(text: str, width: int) -> None:
    assert set(re.findall(r"\d+", shorten(text, width))) <= set(re.findall(r"\d+", text))


def test_both_ends_stay() -> None:
    shown = shorten("python train.py --data /very/long/path/to/some/dataset --seed 42", 40)
    assert shown.startswith("python train.py")
    assert shown.endswith("--seed 42")
    assert shown.count("…") == 1


def test_what_fits_is_untouched() -> None:
    assert shorten("python", 6) == "python"


def test_wide_characters_count_double() -> None:
    assert shorten("学習学習学習", 7, mark=".") == "学習.習"
