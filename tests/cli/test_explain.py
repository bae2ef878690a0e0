"""`vram explain`: every code has its page."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from tests.cli.conftest import Run
from vram.cli import manual
from vram.model.ledger import Kind


def test_whatever_has_a_page_is_listed(vram: Run) -> None:
    answer = vram("explain")
    assert answer.code == 0
    named = re.findall(r"^  (\S+)", answer.out, re.MULTILINE)
    assert named == [*manual.rules(), *manual.checks(), *manual.kinds(), *manual.lines()]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_fit_the_terminal_and_no_word_is_lost(
    vram: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for page in manual.rules().values():
        shown = vram("explain", page.split()[0]).out
        assert shown.split() == page.split()
        assert all(len(line) <= columns for line in shown.splitlines() if _can_be_folded(line))


def _can_be_folded(line: str) -> bool:
    """Code is pasted, and a word is not broken."""
    return not line.startswith("    ") and len(line.removeprefix("- ").split()) > 1


def test_a_page_is_shown_whatever_the_case(vram: Run) -> None:
    code = "VR101"
    answer = vram("explain", code.lower())
    assert answer.code == 0
    assert answer.out.startswith(code)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_line_of_a_ledger_has_a_page(vram: Run, kind: str) -> None:
    answer = vram("explain", kind)
    assert answer.code == 0
    assert f"{kind}: " in answer.out
    assert "A line of `vram why`" in answer.out


def test_a_name_that_means_two_things_has_both_pages(vram: Run) -> None:
    assert vram("explain", "fragmented").out.count("fragmented: ") == 2


def test_an_unknown_code_is_a_usage_error(vram: Run) -> None:
    answer = vram("explain", "VR999")
    assert (answer.code, answer.out) == (2, "")
    assert "VR101" in answer.err
