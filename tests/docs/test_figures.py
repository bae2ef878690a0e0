"""Figures on the pages of the five questions are those of the evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.figures import (
    FIGURES,
    Source,
    agrees,
    figures_of,
    lab,
    lab_says,
    row,
    row_says,
)
from tests.docs.pages import DOCS

PAGES = sorted((DOCS / "questions").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_no_figure_without_evidence(page: Path) -> None:
    unknown = figures_of(page.read_text()) - FIGURES.keys()
    assert unknown == set(), "name the evidence in tests/docs/figures.py, or take the figure from the page"


@pytest.mark.parametrize("figure", FIGURES)
def test_the_newest_evidence_has_the_figure(figure: str) -> None:
    assert agrees(figure, FIGURES[figure])


def test_figures_are_found_in_text_and_not_in_blocks() -> None:
    text = "4623 MiB, or 17,386 MiB; 0.09 s (3 KiB).\n\n```\n$ vram\n1.5 GiB\n```\n\n1.2.3 s, CUDA 13 MiBs\n"
    assert figures_of(text) == {"4623 MiB", "17,386 MiB", "0.09 s", "3 KiB"}


@pytest.mark.parametrize(
    ("figure", "source", "holds"),
    [
        ("4623 MiB", row("killed", "allocated", "used"), True),
        ("4622.8 MiB", row("killed", "allocated", "used"), True),
        ("4.5 GiB", row("killed", "allocated", "used"), True),
        ("4622 MiB", row("killed", "allocated", "used"), False),
        ("5 GiB", row("killed", "allocated", "used"), True),
        ("4 GiB", row("killed", "allocated", "used"), False),
        ("90 ms", row("killed", "gone_after_s", unit="s"), True),
        ("85 ms", row("killed", "gone_after_s", unit="s"), False),
        ("0 MiB", row("killed", "gone_after_s", unit="s"), False),
        ("128 MiB", lab("managed-pieces", "taken"), True),
        ("128 s", lab("managed-pieces", "taken"), False),
        ("4 GiB", row_says("killed"), True),
        ("5 GiB", row_says("killed"), False),
        ("3 KiB", lab_says("kernel-keeps"), True),
    ],
)
def test_a_figure_agrees_with_what_rounds_to_it(figure: str, source: Source, holds: bool) -> None:
    assert agrees(figure, source) is holds
