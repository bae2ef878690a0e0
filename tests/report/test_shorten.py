"""Long command lines lose their middle, never their width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vram.report.shorten import shorten


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
