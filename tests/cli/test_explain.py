"""`vram explain`: every code has its page."""

from __future__ import annotations

from tests.cli.conftest import Run
from vram.diagnosis import manual
from vram.doctor import manual as checks


def test_all_codes_are_listed(vram: Run) -> None:
    answer = vram("explain")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == [*manual.codes(), *checks.ids()]


def test_a_page_is_shown_whatever_the_case(vram: Run) -> None:
    code = manual.codes()[0]
    answer = vram("explain", code.lower())
    assert answer.code == 0
    assert answer.out.startswith(code)


def test_an_unknown_code_is_a_usage_error(vram: Run) -> None:
    answer = vram("explain", "VR999")
    assert (answer.code, answer.out) == (2, "")
    assert manual.codes()[0] in answer.err
