"""The page that says which parts of each framework the virtual GPU carries is what the programs do."""

from __future__ import annotations

import sys

import pytest

from tests.needs import needs
from tests.virtualgpu.frameworks.table import FRAMEWORKS, PAGE, Framework, read_page, run_part, write_page

SECTIONS = read_page(PAGE.read_text())


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda each: each.title)
def test_the_page_has_every_part(framework: Framework) -> None:
    assert list(SECTIONS[framework.title].rows) == list(framework.parts().values())


def test_writing_the_page_again_changes_nothing() -> None:
    assert write_page(PAGE.read_text(), SECTIONS) == PAGE.read_text()


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        pytest.param(
            framework,
            name,
            id=f"{framework.title}-{name}",
            marks=needs(framework.module),
        )
        for framework in FRAMEWORKS
        for name in framework.parts()
    ],
)
def test_a_part_is_carried_or_not_as_the_page_says(framework: Framework, name: str) -> None:
    """How a part fails differs between releases of a framework; whether it does is what people rely on."""
    cell = SECTIONS[framework.title].rows[framework.parts()[name]]
    outcome = run_part(framework, name, sys.executable)
    assert outcome.carried == (cell == "yes"), outcome.instead
    if outcome.carried:
        assert outcome.told == "", "nothing is wrong, and nothing may be said"
