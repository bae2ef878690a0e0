"""`vram explain`: every code has its page."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run
from vram.cli import manual


def test_whatever_has_a_page_is_listed(vram: Run) -> None:
    answer = vram("explain")
    assert answer.code == 0
    named = re.findall(r"^  (\S+)", answer.out, re.MULTILINE)
    assert named == [*manual.rules(), *manual.checks(), *manual.kinds()]


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


def test_an_unknown_code_is_a_usage_error(vram: Run) -> None:
    answer = vram("explain", "VR999")
    assert (answer.code, answer.out) == (2, "")
    assert "VR101" in answer.err
