"""A GPU that is busy without a process: information at first, a warning when it lasts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.diagnosis.ledgers import facts, gpu, ledger, process, silent_gpu
from tests.diagnosis.test_rules import found
from vram.diagnosis.busy import CODE, LASTS_S, BusyTime
from vram.diagnosis.changes import Comparison
from vram.diagnosis.engine import diagnose
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.units import GIB


def busy(percent: int = 100, **about: object) -> Ledger:
    return ledger(gpu(facts=facts(utilization=percent, **about)))


def judged(times: BusyTime, world: Ledger, now_s: float) -> list[Finding]:
    findings = times.judge(world, diagnose(world), now_s)
    return [each for each in findings if each.code == CODE]


def test_a_single_reading_is_information():
    (finding,) = found(CODE, busy())
    assert (finding.severity, finding.gpus, finding.nbytes) == ("info", (0,), None)
    assert "100 %" in finding.title


@pytest.mark.parametrize(
    ("action", "severity", "step"),
    [
        (None, "info", "reset"),
        ("none", "info", "reset"),
        ("gpu-reset", "warning", "reset"),
        ("node-reboot", "warning", "service"),
        ("drain-and-reset", "warning", "drain"),
    ],
)
def test_the_drivers_own_advice_is_passed_on(action, severity, step):
    (finding,) = found(CODE, busy(recovery_action=action))
    assert (finding.severity, finding.remedies[-1].step) == (severity, step)
    assert ("advice" in finding.cause) == (severity == "warning")


def test_it_is_a_warning_when_every_reading_of_minutes_shows_it():
    """However little work is reported: a GPU that nobody uses does none."""
    times, world = BusyTime(), busy(7)
    assert judged(times, world, 0.0) == []
    assert judged(times, world, LASTS_S - 1) == []
    (finding,) = judged(times, world, LASTS_S)
    assert finding.severity == "warning"


def test_a_reading_in_which_somebody_works_or_nothing_does_begins_the_time_anew():
    for between in (busy(0), ledger(gpu(process(7, GIB), facts=facts(utilization=100)))):
        times = BusyTime()
        judged(times, busy(), 0.0)
        judged(times, between, LASTS_S / 2)
        (finding,) = judged(times, busy(), LASTS_S + 1)
        assert finding.severity == "info"


def test_a_gpu_that_did_not_answer_for_once_goes_on():
    """That proves nothing of what it did meanwhile."""
    times = BusyTime()
    silent = replace(silent_gpu("timeout"), uuid="GPU-0")
    judged(times, busy(), 0.0)
    assert judged(times, ledger(silent), LASTS_S / 2) == []
    (finding,) = judged(times, busy(), LASTS_S)
    assert finding.severity == "warning"


def test_the_same_reading_has_the_same_answer_and_the_warning_is_reported_once():
    """`vram watch` and the service compare findings: nothing may change where nothing has changed."""
    times, comparison, world = BusyTime(), Comparison(1), busy()
    findings = diagnose(world)
    comparison.begin(world, times.judge(world, findings, 0.0))
    events = []
    for second in range(0, 600, 20):
        answer = times.judge(world, findings, float(second))
        assert times.judge(world, findings, float(second)) is answer
        events += [(each.event, each.code) for each in comparison.compare(world, answer)]
    assert events == [("finding", CODE)]
