"""sleep-idle: who is put to sleep, and when; pure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.policy.conftest import gpu, holder, ledger, policy, process, reading
from vram.errors import ConfigError
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, Ledger
from vram.policy.engine import CpuTime, PolicyEngine
from vram.policy.policy import Decision, DecisionStatus

IDENTITY = (7, 70)
FOUND = ledger(gpu(process(7)))
NOBODY = ledger(gpu(process(9)))
BUSY_GPU = GpuFacts(name="H200", uuid="GPU-0", utilization=3)


def engine(**table: Any) -> PolicyEngine:
    usual: dict[str, Any] = {"do": "sleep-idle", "after": "10s", "idle": "30s", "readings": 2}
    return PolicyEngine((policy(**{**usual, **table}),))


class Course:
    """Readings five seconds apart, in which process 7 uses what is said of a CPU; what is decided is done."""

    def __init__(self, made: PolicyEngine, status: DecisionStatus = "done") -> None:
        self._engine, self._status = made, status
        self._second = 0.0
        self._used_s = 0.0

    def go(
        self, seconds: int, found: Ledger = FOUND, uses: float = 0.0, allowed: Any = IDENTITY, **more: Any
    ) -> list[Decision]:
        decided: list[Decision] = []
        for _ in range(0, seconds, 5):
            self._used_s += uses * 5
            now = reading(
                found,
                self._second,
                allowed={"sleep": frozenset([allowed])},
                cpu_s={IDENTITY: {IDENTITY: CpuTime(self._used_s)}},
                **more,
            )
            self._second += 5.0
            for each in self._engine.decide(now):
                if each.verdict == "act":
                    self._engine.begun(each, now.moment)
                    self._engine.finished(each, self._status, now.moment)
                decided.append(each)
        return decided


def test_one_that_has_been_idle_for_long_is_put_to_sleep():
    (decision,) = Course(engine()).go(35)
    assert (decision.do, decision.verdict, decision.gpus) == ("sleep", "act", (0,))
    assert [each.identity for each in decision.targets] == [IDENTITY]
    assert "idle for 30 s" in decision.reason


@pytest.mark.parametrize(
    "found",
    [
        ledger(gpu(process(7, state="R"))),
        ledger(gpu(process(7, state="T"))),
        ledger(gpu(process(7), facts=BUSY_GPU)),
        ledger(gpu(process(7, executable="/usr/bin/Xorg"))),
        ledger(gpu(process(7, lists=("mps",)))),
        ledger(gpu(replace(process(7), confidence="likely"))),
        ledger(gpu(process(7), Entry(kind="orphaned", nbytes=1, holder=holder(7), co_holders=(holder(8),)))),
        ledger(gpu(replace(process(7), nbytes=None))),
    ],
)
def test_nobody_who_works_or_is_in_doubt(found: Ledger):
    assert Course(engine()).go(200, found) == []


def test_a_program_that_computes_is_not_idle_and_begins_anew_when_it_is():
    course = Course(engine())
    assert course.go(200, uses=0.5) == []
    assert course.go(25) == []
    assert len(course.go(10)) == 1


@pytest.mark.parametrize("more", [{"allowed": (7, 71)}, {"own_pids": frozenset({7})}, {"good": False}])
def test_none_without_consent_nor_one_from_which_the_service_was_started(more: Any):
    assert Course(engine()).go(200, **more) == []


def test_consent_to_be_parked_is_none_to_sleep():
    made = engine()
    for second in range(0, 200, 5):
        now = reading(FOUND, float(second), allowed={"park": frozenset([IDENTITY])})
        assert made.decide(now) == ()


def test_asleep_it_is_left_alone_and_awake_it_must_be_idle_for_as_long_again():
    course = Course(engine())
    assert len(course.go(35)) == 1
    assert course.go(300, NOBODY) == []
    assert course.go(30) == []
    assert len(course.go(10)) == 1


def test_one_that_was_awake_again_before_the_next_reading_too():
    course = Course(engine())
    assert len(course.go(35)) == 1
    assert course.go(30) == []
    assert len(course.go(10)) == 1


def test_what_is_refused_is_tried_later_and_later():
    course = Course(engine(), "refused")
    assert [len(course.go(50)) for _ in range(5)] == [1, 1, 0, 0, 1]


def test_a_dry_run_says_it_once():
    (decision,) = Course(engine(mode="dry-run")).go(600)
    assert decision.verdict == "dry-run"


def test_so_many_an_hour_at_most():
    course = Course(engine(most_per_hour=2))
    assert [each.verdict for each in course.go(600)] == ["act", "act", "capped"]


def test_what_can_be_said_of_it():
    made = engine(idle="10min").policies[0]
    assert (made.idle_s, made.mode) == (600.0, "act")
    assert (engine(match={}, mode="dry-run", idle="1s").policies[0].idle_s) == 1.0
    with pytest.raises(ConfigError, match="there is no key 'notice'"):
        engine(notice="1min")
    with pytest.raises(ConfigError, match="would act on everything"):
        engine(match={})
