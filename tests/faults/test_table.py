"""The table is whole: every row has its test, and the page names exactly the tests there are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.page import named_on, wrongs
from tests.faults.table import BUILT, ROWS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "faults.md"


def rows_of(marked: ast.FunctionDef | ast.ClassDef) -> set[int]:
    """The rows that the decorators ``@pytest.mark.fault(...)`` of a test or of a class of tests name."""
    return {
        ast.literal_eval(argument)
        for each in marked.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.fault"
        for argument in each.args
    }


def marked_in(path: Path) -> Iterator[tuple[str, set[int]]]:
    name = path.relative_to(ROOT).as_posix()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test_"):
                    yield f"{name}::{node.name}::{method.name}", rows_of(node) | rows_of(method)
        elif isinstance(node, ast.FunctionDef):
            yield f"{name}::{node.name}", rows_of(node)


@pytest.fixture(scope="module")
def tests() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {row.number: set() for row in ROWS}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, rows in marked_in(path):
            for row in rows:
                found[row].add(name)
    return found


def test_the_rows_are_numbered_without_a_gap() -> None:
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))


@pytest.mark.parametrize("row", BUILT, ids=lambda row: str(row.number))
def test_a_row_has_a_test(tests: dict[int, set[str]], row) -> None:
    assert tests[row.number], f"nothing tries row {row.number}: {row.fault}"


def test_the_page_names_the_tests_that_exist_and_no_others(tests: dict[int, set[str]]) -> None:
    assert named_on(PAGE.read_text()) == tests, "run `make faults`"


def test_the_page_tells_of_nothing_wrong() -> None:
    assert wrongs(PAGE.read_text()) == []
