"""What a run leaves out is noticed, and a page says what the run said."""

from __future__ import annotations

from typing import Any

from tests.faults.page import Figures, named_on, page, wrongs
from tests.faults.record import untried
from tests.faults.table import BUILT, ROWS


def a_run(**changes: dict[str, Any]) -> dict[str, Figures]:
    """One test for each row, with what *changes* say of the tests that they name."""
    figures = {}
    for row in BUILT:
        name = f"tests/test_it.py::test_{row.number}"
        told = {"tries": 1000, "landed": 900, "wrong": 0, "skipped": None}
        figures[name] = Figures((row.number,))
        figures[name].add(told | changes.get(f"test_{row.number}", {}))
    return figures


def test_a_whole_run_lacks_nothing() -> None:
    assert untried(a_run(), may_skip=False) == []


def test_a_row_whose_tests_did_not_run_is_told() -> None:
    figures = a_run()
    del figures["tests/test_it.py::test_12"]
    (line,) = untried(figures, may_skip=True)
    assert line.startswith("row 12 (pid reuse")


def test_a_row_that_was_skipped_is_enough_for_the_suite_and_not_for_the_page() -> None:
    figures = a_run(test_4={"tries": 0, "landed": 0, "skipped": "needs root"})
    assert untried(figures, may_skip=True) == []
    (line,) = untried(figures, may_skip=False)
    assert "needs root" in line


def test_anything_wrong_is_told() -> None:
    (line,) = untried(a_run(test_7={"wrong": 2}), may_skip=False)
    assert line == "row 7: 2 wrong in tests/test_it.py::test_7"


def test_a_page_names_rows_tests_and_figures() -> None:
    text = page(a_run(test_3={"skipped": "no strace"}))
    assert named_on(text) == {
        row.number: set() if row.whole else {f"tests/test_it.py::test_{row.number}"} for row in ROWS
    }
    assert "| 1,000 | 900 | 0 |" in text
    assert "skipped: no strace" in text
    assert text.count("not built yet |") == len(ROWS) - len(BUILT)


def test_a_page_with_something_wrong_is_noticed() -> None:
    assert wrongs(page(a_run())) == []
    assert len(wrongs(page(a_run(test_7={"wrong": 10})))) == 1
