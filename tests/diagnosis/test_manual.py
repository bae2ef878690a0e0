"""`vram explain`: every code has a whole page, and a wrong code gets a hint."""

from __future__ import annotations

import pytest

from vram.cli import manual
from vram.diagnosis.engine import RULES, require_code
from vram.errors import UsageError

SECTIONS = [
    "What it detects",
    "Why it happens",
    "How to confirm",
    "Remedies and their risk",
    "Source",
]


@pytest.mark.parametrize("code", manual.rules())
def test_a_page_has_all_sections_in_order(code):
    lines = manual.page(code).splitlines()
    headings = [lines[i - 1] for i, line in enumerate(lines) if line and set(line) == {"-"}]
    assert headings == SECTIONS
    assert all(_body(lines, heading) for heading in headings)


def _body(lines: list[str], heading: str) -> str:
    return lines[lines.index(heading) + 2]


@pytest.mark.parametrize("code", manual.rules())
def test_a_page_starts_with_its_code_and_fits(code):
    lines = manual.page(code).splitlines()
    assert lines[0].startswith(f"{code} ")
    assert len(lines[0]) <= 90
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("code", manual.rules())
def test_confirming_gives_a_command_to_paste(code):
    confirm = manual.page(code).partition("How to confirm")[2].partition("Remedies")[0]
    assert [line for line in confirm.splitlines() if line.startswith("    ")]


def test_no_page_suggests_violence():
    for code in manual.rules():
        assert "fuser -k" not in manual.page(code)


def test_codes_are_sorted_and_unique():
    assert list(manual.rules()) == sorted({rule.CODE for rule in RULES})


def test_case_and_spaces_do_not_matter():
    assert manual.page(" vr101 ") == manual.page("VR101")
    assert dict(manual.summaries(manual.rules()))["VR101"].startswith("Orphaned by fork")
    require_code(" vr101 ")


@pytest.mark.parametrize("asked", [manual.page, require_code])
def test_an_unknown_code_names_the_known_ones(asked):
    with pytest.raises(UsageError) as caught:
        asked("VR999")
    assert "VR101" in caught.value.hint
