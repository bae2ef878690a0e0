"""Decisions from readings: delays that anything doubtful restarts, caps, backoff, one action at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.policy.conftest import (
    At,
    gpu,
    holder,
    ledger,
    orphan,
    policy,
    process,
    reading,
    unexplained,
)
from vram.model.ledger import Ledger
from vram.policy.engine import PolicyEngine
from vram.policy.policy import Decision, Policy, PolicyMemory, Waiter
from vram.units import GIB

GHOST = ledger(gpu(orphan(20, dead=10), process(30, user="bob")))
CLEAN = ledger(gpu(process(30, user="bob")))


def run(engine: PolicyEngine, found: Ledger, times: list[float], **more: Any) -> list[Decision]:
    return [each for boot in times for each in engine.decide(reading(found, boot, **more))]


def settled(*policies: Policy, found: Ledger = GHOST, **more: Any) -> tuple[PolicyEngine, list[Decision]]:
    """An engine whose conditions have been met for long enough, and what it decided then."""
    engine = PolicyEngine(policies, **more)
    return engine, run(engine, found, [0.0, 30.0, 60.0])


def test_a_leftover_is_ended_after_the_delay_and_not_before():
    engine = PolicyEngine((policy(),))
    assert run(engine, GHOST, [0.0, 20.0, 40.0, 59.9]) == []
    (decision,) = run(engine, GHOST, [60.0])
    assert (decision.do, decision.verdict, decision.code, decision.gpus) == ("end", "act", "VR101", (0,))
    assert [target.identity for target in decision.targets] == [(20, 200)]
    assert (decision.held_s, decision.readings, decision.nbytes) == (60.0, 5, 4 * GIB)
    assert decision.evidence == ("pid 20 has the files of pid 10 open",)


def test_so_many_readings_are_needed_however_long_it_takes():
    engine = PolicyEngine((policy(readings=4),))
    assert run(engine, GHOST, [0.0, 59.0, 118.0]) == []
    assert len(run(engine, GHOST, [150.0])) == 1


TWO_HOLDERS = ledger(gpu(orphan(20, dead=10, co_holders=(holder(21),), sharing="all")))
RESTARTS: dict[str, Any] = {
    "a reading failed": lambda boot: reading(GHOST, boot, good=False),
    "it was gone in between": lambda boot: reading(CLEAN, boot),
    "the GPU did not answer": lambda boot: reading(ledger(gpu(orphan(20, dead=10), status="timeout")), boot),
    "another driver was loaded": lambda boot: reading(
        ledger(gpu(orphan(20, dead=10)), version="590.1"), boot
    ),
    "the wall clock was set": lambda boot: reading(GHOST, boot, moment=At(5.0e6, boot)),
    "it is another boot": lambda boot: reading(GHOST, boot, moment=At(1e6 + boot, boot, "other")),
    "another holder has the pid": lambda boot: reading(ledger(gpu(orphan(20, dead=10, started_at=7))), boot),
    "one more holds it": lambda boot: reading(TWO_HOLDERS, boot),
}


@pytest.mark.fault(8, 30)
@pytest.mark.parametrize("why", RESTARTS)
def test_whatever_is_doubtful_starts_the_delay_again(why: str):
    engine = PolicyEngine((policy(),))
    run(engine, GHOST, [0.0, 25.0, 50.0])
    assert engine.decide(RESTARTS[why](55.0)) == ()
    # One who joined and left again is no doubt: those who hold it now have held it since.
    begins = 55.0 if why == "one more holds it" else 60.0
    assert run(engine, GHOST, [60.0, 80.0, 100.0, begins + 59.0]) == []
    assert len(run(engine, GHOST, [130.0])) == 1


def test_a_leftover_of_no_bytes_is_no_fault():
    """What others are charged with too may leave nothing of a dead owner's charge."""
    engine = PolicyEngine((policy(),))
    run(engine, ledger(gpu(orphan(20, dead=10, nbytes=0))), [0.0, 30.0, 60.0])


def test_a_holder_who_joins_starts_the_delay_again_and_one_who_leaves_does_not():
    engine = PolicyEngine((policy(),))
    assert run(engine, GHOST, [0.0, 25.0, 50.0]) == []
    assert run(engine, TWO_HOLDERS, [55.0, 80.0]) == []
    assert run(engine, GHOST, [100.0, 114.0]) == []
    (decision,) = run(engine, GHOST, [115.0])
    assert (decision.held_s, [target.identity for target in decision.targets]) == (60.0, [(20, 200)])


@pytest.mark.fault(30)
def test_a_pause_between_readings_and_a_suspend_start_it_again():
    engine = PolicyEngine((policy(),))
    run(engine, GHOST, [0.0, 30.0, 50.0])
    assert run(engine, GHOST, [3650.0, 3680.0]) == []
    assert len(run(engine, GHOST, [3710.0])) == 1


@pytest.mark.fault(30)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_no_wall_clock_makes_a_policy_act_earlier(jumps: list[float]):
    engine = PolicyEngine((policy(),))
    for at, jump in enumerate(jumps):
        assert engine.decide(reading(GHOST, at * 7.0, moment=At(1e6 + jump, at * 7.0))) == ()


def test_a_restart_of_the_service_starts_it_again_and_keeps_the_caps():
    engine, (decision,) = settled(policy(most_per_hour=1))
    engine.begun(decision, At(1e6 + 60, 60.0))
    again = PolicyEngine((policy(most_per_hour=1),), engine.memory)
    assert run(again, GHOST, [65.0, 70.0, 124.0]) == []
    (capped,) = run(again, GHOST, [125.0])
    assert capped.verdict == "capped"
    assert "cap of 1" in capped.reason


@pytest.mark.parametrize("do", ["end-leftovers", "warn-owner"])
def test_dry_run_is_decided_once_and_has_no_consequences(do: str):
    notify = {"notify": {"terminals": True}} if do == "warn-owner" else {}
    engine, decided = settled(policy(mode="dry-run", do=do, **notify))
    assert [each.verdict for each in decided] == ["dry-run"]
    assert run(engine, GHOST, [90.0 + 30 * at for at in range(100)]) == []
    assert engine.memory == PolicyMemory()


def test_by_default_nothing_acts():
    assert policy(mode="dry-run").mode == Policy(name="x", do="park-idle").mode == "dry-run"


DOUBTS = {
    "not certain": orphan(20, dead=10, confidence="likely"),
    "protected": orphan(20, dead=10, executable="/usr/bin/Xorg"),
    "the first process": orphan(1, dead=10),
    "stopped": orphan(20, dead=10, state="T"),
    "unkillable": orphan(20, dead=10, state="D"),
    "exported by somebody to another user": orphan(20, dead=10, kind="exported"),
}


@pytest.mark.fault(4, 16)
@pytest.mark.parametrize("why", DOUBTS)
def test_what_vram_free_would_not_end_by_itself_no_policy_ends(why: str):
    everything = policy(all=True, match={"commands": ["*"]})
    engine = PolicyEngine((everything,))
    assert run(engine, ledger(gpu(DOUBTS[why])), [0.0, 30.0, 60.0, 90.0]) == []


def test_a_holder_that_works_is_left_alone():
    found = ledger(gpu(orphan(20, dead=10), process(20)))
    assert settled(policy(all=True, match={}), found=found)[1] == []


MISSES: dict[str, dict[str, Any]] = {
    "user": {"users": ["bob"]},
    "not this user": {"users": ["*l*"], "not-users": ["alice"]},
    "gpu": {"gpus": [1]},
    "code": {"codes": ["VR103"]},
    "size": {"min-size": "5GiB"},
    "age": {"min-age": "3h", "users": ["alice"]},
    "command": {"commands": ["julia*"]},
    "unit": {"units": ["docker-*"]},
    "job": {"slurm-jobs": ["1*"]},
    "container": {"containers": ["a*"]},
}


@pytest.mark.parametrize("what", MISSES)
def test_what_does_not_match_is_left_alone(what: str):
    assert settled(policy(match=MISSES[what]))[1] == []


def test_every_holder_must_match():
    shared = orphan(20, dead=10, co_holders=(holder(21, user="bob"),), sharing="all")
    assert settled(policy(), found=ledger(gpu(shared)))[1] == []
    (decision,) = settled(policy(match={"users": ["alice", "bob"]}), found=ledger(gpu(shared)))[1]
    assert [target.pid for target in decision.targets] == [20, 21]


def test_a_service_of_one_user_ends_only_that_users_leftovers():
    mine = ledger(gpu(orphan(20, dead=10)), uid=1000, user="alice")
    others = ledger(gpu(orphan(20, dead=10)), uid=1001, user="bob")
    assert len(settled(policy(), found=mine)[1]) == 1
    assert settled(policy(), found=others)[1] == []


TWO = ledger(gpu(orphan(20, dead=10), orphan(40, dead=11)))


def test_one_action_at_a_time():
    engine, (first,) = settled(policy(), found=TWO)
    engine.begun(first, At(1e6 + 60, 60.0))
    assert run(engine, TWO, [65.0, 70.0]) == []
    engine.finished(first, "done", At(1e6 + 71, 71.0))
    (second,) = run(engine, ledger(gpu(orphan(40, dead=11))), [75.0])
    assert second.subject != first.subject


def test_caps_hold_for_each_policy_and_for_all_together():
    one, other = policy(most_per_hour=1), policy(name="q", most_per_hour=5, match={"gpus": [0]})
    engine = PolicyEngine((one, other), most_per_hour=2)
    verdicts = []
    boot = 0.0
    for at in range(6):
        found = ledger(gpu(orphan(20 + at, dead=10)))
        for passed in (0.0, 30.0, 60.0, 65.0):
            for decision in run(engine, found, [boot + passed]):
                verdicts.append((decision.policy, decision.verdict))
                if decision.verdict == "act":
                    engine.begun(decision, At(1e6 + boot + passed, boot + passed))
                    engine.finished(decision, "done", At(1e6 + boot + passed, boot + passed))
        boot += 100.0
    assert [each for each in verdicts if each[1] == "act"] == [("p", "act"), ("q", "act")]
    assert ("p", "capped") in verdicts
    assert ("q", "capped") in verdicts
    late = ledger(gpu(orphan(99, dead=10)))
    assert [each.verdict for each in run(engine, late, [4200.0, 4230.0, 4260.0])] == ["act"]


def test_a_clock_that_went_back_across_a_boot_frees_no_cap():
    engine, (decision,) = settled(policy(most_per_hour=1))
    engine.begun(decision, At(1e6 + 60, 60.0))
    again = PolicyEngine((policy(most_per_hour=1),), engine.memory)
    moments = [At(500.0 + boot, boot, "next") for boot in (1.0, 31.0, 61.0)]
    decided = [each for moment in moments for each in again.decide(reading(GHOST, 0.0, moment=moment))]
    assert [each.verdict for each in decided] == ["capped"]


def test_after_a_failure_it_is_tried_again_later_and_later():
    engine, (decision,) = settled(policy(most_per_hour=100))
    tried, boot = [], 60.0
    while boot < 20_000 and len(tried) < 6:
        engine.begun(decision, At(1e6 + boot, boot))
        engine.finished(decision, "failed", At(1e6 + boot, boot))
        tried.append(boot)
        engine.memory.acts.clear()  # the cap is not what is tested here
        while not (decided := run(engine, GHOST, [boot := boot + 10.0])):
            pass
        (decision,) = decided
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == [60.0, 120.0, 240.0, 480.0, 960.0]


@pytest.mark.fault(4)
def test_an_unkillable_one_is_never_tried_again_not_even_by_the_next_service():
    engine, (decision,) = settled(policy())
    engine.begun(decision, At(1e6 + 60, 60.0))
    engine.finished(decision, "unkillable", At(1e6 + 80, 80.0))
    assert run(engine, GHOST, [90.0 + 50 * at for at in range(200)]) == []
    again = PolicyEngine((policy(),), engine.memory)
    assert run(again, GHOST, [20_000.0 + 30 * at for at in range(10)]) == []


def test_warnings_come_once_in_a_period():
    told = policy(do="warn-owner", notify={"terminals": True}, again_after="1h")
    engine, (decision,) = settled(told)
    assert decision.do == "warn"
    engine.begun(decision, At(1e6 + 60, 60.0))
    engine.finished(decision, "done", At(1e6 + 61, 61.0))
    grown = ledger(gpu(orphan(20, dead=10, co_holders=(holder(21),), sharing="all")))
    assert run(engine, grown, [70.0 + 50 * at for at in range(70)]) == []
    assert [each.do for each in run(engine, grown, [3600.0, 3650.0, 3700.0])] == ["warn"]


def test_a_warning_is_about_uncertain_leftovers_too():
    told = policy(do="warn-owner", notify={"terminals": True})
    assert len(settled(told, found=ledger(gpu(orphan(20, dead=10, confidence="likely"))))[1]) == 1


def test_messages_do_not_use_up_the_cap_of_actions():
    told = policy(name="tell", do="warn-owner", notify={"terminals": True})
    engine = PolicyEngine((told, policy()), most_per_hour=1)
    (first,) = run(engine, GHOST, [0.0, 30.0, 60.0])
    engine.begun(first, At(1e6 + 60, 60.0))
    engine.finished(first, "done", At(1e6 + 61, 61.0))
    assert [each.verdict for each in run(engine, GHOST, [65.0])] == ["act"]


def test_unexplained_memory_is_reported_from_its_size_on():
    alert = policy(do="alert-unexplained", match={"min-size": "2GiB"}, notify={"webhook": "http://h/"})
    assert settled(alert, found=ledger(gpu(unexplained(GIB))))[1] == []
    (decision,) = settled(alert, found=ledger(gpu(unexplained(3 * GIB))))[1]
    assert (decision.do, decision.nbytes, decision.targets) == ("alert", 3 * GIB, ())


def test_other_policies_begin_anew_and_the_same_go_on():
    engine = PolicyEngine((policy(),))
    run(engine, GHOST, [0.0, 30.0])
    engine.use((policy(), policy(name="q", match={"gpus": [0]})))
    assert [each.policy for each in run(engine, GHOST, [60.0])] == ["p"]
    engine.use((policy(after="70s"),))
    assert run(engine, GHOST, [65.0, 100.0, 130.0]) == []


# ---- parking ----

IDLE = ledger(gpu(process(50, 60 * GIB), process(30, 10 * GIB, user="bob")))
PARK = policy(do="park-idle", match={"users": ["*"]}, all=True, unpark_after="30s")
ALLOWED = {"park": frozenset({(50, 500)})}
WAITER = Waiter(number=1, uid=1001, nbytes=40 * GIB)


def test_an_idle_process_is_parked_only_for_somebody_who_waits():
    engine = PolicyEngine((PARK,))
    assert run(engine, IDLE, [0.0, 30.0, 60.0, 90.0], allowed=ALLOWED) == []
    (decision,) = run(engine, IDLE, [95.0], allowed=ALLOWED, waiters=(WAITER,))
    assert (decision.do, decision.targets[0].pid, decision.by_gpu) == ("park", 50, (60 * GIB,))


@pytest.mark.parametrize(
    ("found", "allowed", "waiter"),
    [
        (IDLE, {}, WAITER),
        (IDLE, {"park": frozenset({(50, 501)})}, WAITER),
        (IDLE, {"sleep": ALLOWED["park"]}, WAITER),
        (IDLE, ALLOWED, replace(WAITER, nbytes=75 * GIB)),
        (IDLE, ALLOWED, replace(WAITER, nbytes=5 * GIB)),
        (IDLE, ALLOWED, replace(WAITER, gpus=(3,))),
        (IDLE, ALLOWED, replace(WAITER, is_served=True)),
        (ledger(gpu(process(50, 60 * GIB, state="R"))), ALLOWED, WAITER),
        (ledger(gpu(process(50, 60 * GIB, executable="/usr/bin/Xorg"))), ALLOWED, WAITER),
        (ledger(gpu(process(50, 60 * GIB, lists=("mps",)))), ALLOWED, WAITER),
    ],
)
def test_nobody_is_parked_without_consent_need_or_idleness(found: Ledger, allowed: Any, waiter: Waiter):
    engine = PolicyEngine((PARK,))
    assert run(engine, found, [0.0, 30.0, 60.0, 90.0], allowed=allowed, waiters=(waiter,)) == []


def parked_engine() -> PolicyEngine:
    engine = PolicyEngine((PARK,))
    (decision,) = run(engine, IDLE, [0.0, 30.0, 60.0], allowed=ALLOWED, waiters=(WAITER,))
    engine.begun(decision, At(1e6 + 60, 60.0))
    engine.parked(decision, 1000, {0: 60 * GIB}, At(1e6 + 60, 60.0))
    engine.finished(decision, "done", At(1e6 + 61, 61.0))
    return engine


ROOM = ledger(gpu(process(30, 10 * GIB, user="bob")))
USED = ledger(gpu(process(30, 10 * GIB, user="bob"), process(60, 40 * GIB, user="carol")))


def test_it_comes_back_when_nobody_waits_and_there_is_room():
    engine = parked_engine()
    assert run(engine, ROOM, [65.0, 100.0], waiters=(WAITER,)) == []
    assert run(engine, USED, [105.0, 140.0, 150.0]) == []
    assert run(engine, ROOM, [155.0])[0].do == "unpark"


def test_it_does_not_come_back_before_the_delay_and_a_new_waiter_starts_it_again():
    engine = parked_engine()
    assert run(engine, ROOM, [65.0, 90.0]) == []
    assert run(engine, ROOM, [92.0], waiters=(WAITER,)) == []
    assert run(engine, ROOM, [95.0, 120.0]) == []
    (decision,) = run(engine, ROOM, [126.0])
    engine.unparked(decision.targets[0].identity)
    assert run(engine, ROOM, [130.0, 170.0]) == []


def test_it_comes_back_after_a_restart_and_without_its_policy():
    memory = parked_engine().memory
    engine = PolicyEngine((), memory)
    assert [each.do for each in run(engine, ROOM, [500.0, 520.0, 530.0])] == ["unpark"]


def test_after_another_boot_nobody_is_looked_for():
    engine = PolicyEngine((), parked_engine().memory)
    for boot in (10.0, 50.0):
        assert engine.decide(reading(ROOM, boot, moment=At(2e6 + boot, boot, "next"))) == ()
    assert engine.memory.parked == []
