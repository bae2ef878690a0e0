"""Every rule fires on its cause, stays quiet next to it, and says so in a form that fits."""

from __future__ import annotations

import pytest

from tests.diagnosis.cases import CASES, FURTHER, QUIET
from vram.cli.manual import rules
from vram.diagnosis.engine import RULES, diagnose
from vram.model.finding import Finding
from vram.model.ledger import Ledger


def found(code: str, ledger: Ledger) -> list[Finding]:
    return [finding for finding in diagnose(ledger) if finding.code == code]


def test_every_code_has_a_case():
    assert set(CASES) == set(rules())
    assert len(RULES) == len(rules())


@pytest.mark.parametrize("code", sorted(CASES))
def test_fires_on_its_cause(code):
    assert len(found(code, CASES[code].fires)) == 1


@pytest.mark.parametrize("code", sorted(CASES))
def test_stays_quiet_on_the_near_miss(code):
    assert found(code, CASES[code].near_miss) == []


@pytest.mark.parametrize(("code", "ledger"), FURTHER)
def test_fires_on_other_forms_of_its_cause(code, ledger):
    assert len(found(code, ledger)) == 1


@pytest.mark.parametrize(("code", "ledger"), QUIET)
def test_leaves_to_others_what_is_not_its_cause(code, ledger):
    assert found(code, ledger) == []


@pytest.mark.parametrize("code", sorted(CASES))
def test_a_finding_can_be_read_in_a_terminal(code):
    """A title of one line of 70 columns, a cause of one or two sentences."""
    (finding,) = found(code, CASES[code].fires)
    assert 0 < len(finding.title) <= 70
    assert finding.cause[-1] == "."
    assert finding.cause.count(". ") <= 1
    assert all(remedy.text for remedy in finding.remedies)
