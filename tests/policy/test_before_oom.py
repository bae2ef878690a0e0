"""before-oom: when it acts, on whom, and how often; pure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.policy.conftest import TOTAL, gpu, ledger, policy, process, reading
from vram.errors import ConfigError
from vram.model.forecast import Forecast, GrowingHold, Growth
from vram.policy.engine import PolicyEngine
from vram.policy.policy import Decision
from vram.units import GIB

RATE = GIB / 60


def forecast(full_in_s: float, index: int = 0, pid: int = 7) -> Forecast:
    growth = Growth(
        bytes_per_s=RATE, least_bytes_per_s=RATE, most_bytes_per_s=RATE, span_s=600.0, apart_s=37.5
    )
    hold = GrowingHold(
        nbytes=8 * GIB,
        growth=growth,
        full_in_s=full_in_s,
        pid=pid,
        started_at=pid * 10,
        user="alice",
        command="python train.py",
    )
    return Forecast(
        gpu=index,
        place=str(index),
        free_bytes=int(full_in_s * RATE),
        full_in_s=full_in_s,
        earliest_s=full_in_s,
        latest_s=full_in_s,
        growth=growth,
        growing=(hold,),
    )


def engine(**table: Any) -> PolicyEngine:
    usual: dict[str, Any] = {"do": "before-oom", "after": "10s", "match": {"gpus": [0]}}
    return PolicyEngine((policy(**{**usual, **table}),))


FOUND = ledger(gpu(process(7), process(8), process(9)))


def over_time(
    made: PolicyEngine, full_in_s: float | None, seconds: int = 100, found: Any = FOUND, **more: Any
) -> list[Decision]:
    """What is decided in readings five seconds apart; what is decided is done at once."""
    decided: list[Decision] = []
    for second in range(0, seconds, 5):
        forecasts = () if full_in_s is None else (forecast(full_in_s),)
        now = reading(found, float(second), forecasts=forecasts, agreed=frozenset({(8, 80)}), **more)
        for each in made.decide(now):
            if each.verdict == "act":
                made.begun(each, now.moment)
                made.finished(each, "done", now.moment)
            decided.append(each)
    return decided


def test_those_who_agreed_are_asked_once_and_the_owner_of_what_grows_is_told():
    (decision,) = over_time(engine(), 300.0)
    assert (decision.do, decision.verdict, decision.gpus) == ("relieve", "act", (0,))
    assert [each.pid for each in decision.targets] == [8]
    assert [(each.pid, each.command) for each in decision.told] == [(7, "python train.py")]
    # So much that it is not full within ten minutes, the usual time.
    assert decision.nbytes == pytest.approx(300 * RATE, abs=2)
    assert decision.held_s >= 10.0


def test_it_is_done_again_after_a_quarter_of_an_hour_while_it_lasts():
    assert len(over_time(engine(), 300.0, seconds=890)) == 1
    assert len(over_time(engine(), 300.0, seconds=1000)) == 2


@pytest.mark.parametrize("full_in_s", [None, 601.0])
def test_nothing_is_done_where_it_is_not_nearly_full(full_in_s: float | None):
    assert over_time(engine(), full_in_s) == []


def test_the_threshold_is_the_policys():
    assert over_time(engine(full_in="2min"), 121.0) == []
    assert len(over_time(engine(full_in="2min"), 119.0)) == 1


def test_a_gpu_with_little_left_needs_no_forecast():
    free = TOTAL - 24 * GIB
    (decision,) = over_time(engine(min_free=f"{free + GIB}B"), None)
    assert decision.nbytes == GIB
    assert decision.told == ()
    assert over_time(engine(min_free=f"{free}B"), None) == []


def test_what_flickers_begins_its_delay_anew():
    made, decided = engine(after="30s"), []
    for second in range(0, 300, 5):
        forecasts = (forecast(300.0),) if second % 25 else ()
        decided += made.decide(reading(FOUND, float(second), forecasts=forecasts))
    assert decided == []


def test_other_gpus_are_not_meant():
    assert over_time(engine(match={"gpus": [1]}), 300.0) == []


def test_a_gpu_that_is_lost_is_left_alone():
    lost = ledger(replace(gpu(), status="lost", total_bytes=None, entries=()))
    assert over_time(engine(min_free="1GiB"), 300.0, found=lost) == []


def test_failed_readings_decide_nothing():
    assert over_time(engine(), 300.0, good=False) == []


def test_without_agreement_nobody_is_asked_and_the_reason_says_so():
    made = engine(mode="dry-run", all=True, match={})
    found = [
        each
        for second in range(0, 60, 5)
        for each in made.decide(reading(FOUND, float(second), forecasts=(forecast(60.0),)))
    ]
    assert [(each.verdict, each.targets) for each in found] == [("dry-run", ())]
    assert "no process there agreed" in found[0].reason


def test_a_part_of_the_system_is_not_asked_even_if_it_agreed():
    display = process(8, executable="/usr/lib/xorg/Xorg", user="root", executable_trusted=True)
    (decision,) = over_time(engine(), 300.0, found=ledger(gpu(process(7), display)))
    assert decision.targets == ()


def test_acting_needs_gpus_or_all_said():
    with pytest.raises(ConfigError, match="would act on everything"):
        engine(match={})
    assert engine(match={}, all=True).policies[0].after_s == 10.0


def test_users_cannot_be_named_for_owners_agree_themselves():
    with pytest.raises(ConfigError, match="there is no key 'users'"):
        engine(match={"users": ["alice"]})
