"""end-orphans decides about whole jobs that are idle, their owner told before; in doubt about none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.policy.conftest import At, gpu, holder, ledger, policy, process, rank, reading
from vram.errors import ConfigError
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, Ledger
from vram.policy.config import read_policies
from vram.policy.engine import CpuTime, PolicyEngine
from vram.policy.policy import Decision, Policy, PolicyMemory

JOB = ledger(gpu(rank(20, 0), process(30, user="bob")), gpu(rank(21, 1), index=1))
LEFT = ledger(gpu(rank(20, 0), process(30, user="bob")), gpu(index=1))
GROWN = ledger(gpu(rank(20, 0), rank(22, 2), process(30, user="bob")), gpu(rank(21, 1), index=1))
BUSY = GpuFacts(name="H200", uuid="GPU-1", utilization=40)


def orphans(**table: Any) -> Policy:
    told = {} if table.get("notice") == "0s" else {"notify": {"terminals": True}}
    return policy(**{"do": "end-orphans", "idle": "30s", "notice": "0s", **told, **table})


def at_rest(found: Ledger, used_s: float = 1.0, waited_s: float = 0.0) -> dict[Any, Any]:
    """CPU times as they are read for every process of a ledger."""
    people = [entry.holder for each in found.gpus for entry in each.entries if entry.holder]
    names = [(each.pid, each.started_at) for each in people]
    return {name: {name: CpuTime(used_s, waited_s)} for name in names}


def run(engine: PolicyEngine, found: Ledger, times: list[float], **more: Any) -> list[Decision]:
    more.setdefault("cpu_s", at_rest(found))
    return [each for boot in times for each in engine.decide(reading(found, boot, **more))]


def pids(decision: Decision) -> list[int]:
    return [each.pid for each in decision.targets]


def carried_out(engine: PolicyEngine, decision: Decision, boot: float, status: Any = "done") -> None:
    engine.begun(decision, At(1e6 + boot, boot))
    engine.finished(decision, status, At(1e6 + boot, boot))


ALONE = orphans(notice="0s")


def test_a_job_is_ended_as_a_whole_after_the_delay_and_not_before():
    engine = PolicyEngine((ALONE,))
    assert run(engine, JOB, [0.0, 20.0, 40.0, 59.9]) == []
    (decision,) = run(engine, JOB, [60.0])
    assert (decision.do, decision.verdict, decision.code, decision.gpus) == ("end", "act", "VR208", (0, 1))
    assert (pids(decision), decision.held_s) == ([20, 21], 60.0)
    assert any("its parent is now pid 1" in line for line in decision.evidence)


def test_it_must_have_been_idle_without_a_pause_for_so_long():
    engine = PolicyEngine((orphans(notice="0s", idle="50s"),))
    run(engine, JOB, [0.0, 20.0])
    works = replace(JOB, gpus=(JOB.gpus[0], replace(JOB.gpus[1], facts=BUSY)))
    assert run(engine, works, [40.0]) == []
    assert run(engine, JOB, [60.0, 89.0]) == []
    (decision,) = run(engine, JOB, [90.0])
    assert decision.held_s == 90.0


WORK: dict[str, Any] = {
    "one of them uses the CPU": {(21, 210): {(21, 210): CpuTime(3.0)}},
    "one of them waits for a CPU": {(21, 210): {(21, 210): CpuTime(1.0, 9.0)}},
    "one below it does": {(21, 210): {(21, 210): CpuTime(1.0), (99, 990): CpuTime(2.0)}},
    "one below it has ended": {(21, 210): {}},
    "its CPU time cannot be read": {(21, 210): None},
}


@pytest.mark.parametrize("why", WORK)
def test_cpu_time_is_work_though_the_first_thread_sleeps(why: str):
    engine = PolicyEngine((ALONE,))
    run(engine, JOB, [0.0, 20.0, 40.0])
    then = {key: value for key, value in {**at_rest(JOB), **WORK[why]}.items() if value is not None}
    assert run(engine, JOB, [50.0], cpu_s=then) == []
    assert run(engine, JOB, [60.0, 79.0], cpu_s=then) == []
    if why == "its CPU time cannot be read":
        assert run(engine, JOB, [100.0], cpu_s=then) == []
    else:
        assert len(run(engine, JOB, [80.0], cpu_s=then)) == 1


@given(st.lists(st.floats(0.2, 5.0), min_size=20, max_size=20))
def test_no_job_that_uses_a_twentieth_of_a_core_is_ended(work: list[float]):
    engine = PolicyEngine((ALONE,))
    used = 0.0
    for at, each in enumerate(work):
        used += each
        assert run(engine, JOB, [4.0 * at], cpu_s=at_rest(JOB, used)) == []


def test_waking_up_on_a_busy_machine_is_no_work():
    """The driver's own threads wake up ten times a second, and wait for a CPU each time."""
    engine = PolicyEngine((ALONE,))
    ends = [run(engine, JOB, [4.0 * at], cpu_s=at_rest(JOB, 1 + 0.04 * at, 0.4 * at)) for at in range(16)]
    assert [len(each) for each in ends] == [0] * 15 + [1]


def test_one_who_joins_starts_the_delay_again_and_one_who_ends_does_not():
    engine = PolicyEngine((ALONE,))
    run(engine, JOB, [0.0, 20.0, 40.0])
    assert run(engine, GROWN, [50.0, 80.0, 109.0]) == []
    assert run(engine, JOB, [109.5]) == []
    (decision,) = run(engine, JOB, [110.0])
    assert (pids(decision), decision.held_s) == ([20, 21], 60.0)
    again = PolicyEngine((ALONE,))
    run(again, JOB, [0.0, 30.0])
    assert pids(*run(again, LEFT, [60.0])) == [20]


def test_one_who_left_and_came_back_has_joined():
    engine = PolicyEngine((ALONE,))
    run(engine, JOB, [0.0, 20.0])
    run(engine, LEFT, [40.0])
    assert run(engine, JOB, [50.0, 80.0, 109.0]) == []
    assert len(run(engine, JOB, [110.0])) == 1


# ---- the owner is told before ----

TOLD = orphans(notice="100s")


def test_the_owner_is_told_first_and_the_job_is_ended_when_that_time_is_over():
    engine = PolicyEngine((TOLD,))
    (told,) = run(engine, JOB, [0.0, 30.0, 60.0])
    assert (told.do, told.verdict, told.notice_s) == ("announce", "act", 100.0)
    carried_out(engine, told, 61.0)
    assert run(engine, JOB, [90.0, 120.0, 150.0, 160.0]) == []
    (ended,) = run(engine, JOB, [161.0])
    assert (ended.do, pids(ended)) == ("end", [20, 21])


def test_nothing_follows_from_a_message_that_reached_nobody():
    engine = PolicyEngine((TOLD,))
    (told,) = run(engine, JOB, [0.0, 30.0, 60.0])
    carried_out(engine, told, 61.0, "failed")
    assert run(engine, JOB, [90.0, 120.0]) == []
    assert [each.do for each in run(engine, JOB, [125.0])] == ["announce"]


def test_a_notice_survives_a_restart_and_another_job_or_a_later_member_is_told_of_again():
    engine = PolicyEngine((TOLD,))
    (told,) = run(engine, JOB, [0.0, 30.0, 60.0])
    carried_out(engine, told, 61.0)
    after = PolicyEngine((TOLD,), replace(engine.memory))
    assert [each.do for each in run(after, JOB, [200.0, 230.0, 260.0])] == ["end"]
    other = PolicyEngine((TOLD,), replace(engine.memory))
    assert [each.do for each in run(other, GROWN, [200.0, 230.0, 260.0])] == ["announce"]


def test_a_shorter_notice_that_is_configured_later_breaks_no_promise():
    engine = PolicyEngine((TOLD,))
    (told,) = run(engine, JOB, [0.0, 30.0, 60.0])
    carried_out(engine, told, 61.0)
    engine.use((orphans(notice="1s"),))
    assert run(engine, JOB, [70.0, 100.0, 130.0, 160.0]) == []
    assert [each.do for each in run(engine, JOB, [161.0])] == ["end"]


def test_dry_run_is_decided_once_tells_nobody_and_has_no_consequences():
    engine = PolicyEngine((orphans(mode="dry-run", notice="100s"),))
    (decision,) = run(engine, JOB, [0.0, 30.0, 60.0])
    assert (decision.do, decision.verdict) == ("end", "dry-run")
    assert run(engine, JOB, [90.0 + 30 * at for at in range(100)]) == []
    assert engine.memory == PolicyMemory()


def test_messages_and_ends_have_caps_of_their_own():
    engine = PolicyEngine((orphans(notice="100s", most_per_hour=1),))
    (told,) = run(engine, JOB, [0.0, 30.0, 60.0])
    carried_out(engine, told, 61.0)
    assert [each.verdict for each in run(engine, JOB, [100.0, 130.0, 161.0])] == ["act"]


# ---- who is left alone ----


def with_rank(**more: Any) -> Ledger:
    return ledger(gpu(rank(20, 0)), gpu(rank(21, 1, **more), index=1))


SHARED = replace(rank(21, 1), co_holders=(holder(30),), sharing="all")
HEALTHY = replace(rank(21, 1).holder.job, is_orphan=False)  # type: ignore[union-attr,arg-type]
LEFT_ALONE: dict[str, Ledger] = {
    "one is stopped": with_rank(state="T"),
    "one is being debugged": with_rank(state="t"),
    "one waits in the kernel": with_rank(state="D"),
    "one is exiting": with_rank(exiting=True),
    "the program of one was replaced": with_rank(executable_deleted=True),
    "one is a part of the system": with_rank(executable="/usr/bin/Xorg"),
    "one is an MPS client": with_rank(lists=("mps",)),
    "of one it is not proved": with_rank(job=HEALTHY),
    "of one nobody knows when it began": with_rank(started_at=None),
    "somebody else holds the same memory": ledger(gpu(rank(20, 0)), gpu(SHARED, index=1)),
    "its pid is in doubt": ledger(gpu(rank(20, 0)), gpu(replace(rank(21, 1), confidence="likely"), index=1)),
    "a GPU does not answer": ledger(gpu(rank(20, 0)), gpu(rank(21, 1), index=1, status="timeout")),
    "one belongs to somebody who is not meant": with_rank(user="bob"),
    "one belongs to root": with_rank(user="root", uid=0),
    "one belongs to a service": with_rank(user="postgres", uid=112),
    "one belongs to nobody": with_rank(user="nobody", uid=65534),
    "one runs": with_rank(state="R"),
    "a GPU works": ledger(gpu(rank(20, 0)), gpu(rank(21, 1), index=1, facts=BUSY)),
    "it is somebody else's, and we are not root": replace(JOB, host=replace(JOB.host, uid=1001, user="bob")),
}


@pytest.mark.fault(4, 15, 16)
@pytest.mark.parametrize("why", LEFT_ALONE)
def test_in_doubt_the_whole_job_is_left_alone(why: str):
    meant = ["alice"] if "not meant" in why else ["alice", "*"]
    engine = PolicyEngine((orphans(notice="0s", all=True, match={"users": meant}),))
    assert run(engine, LEFT_ALONE[why], [0.0, 30.0, 60.0, 90.0, 120.0]) == []


def test_without_a_doubt_the_same_policy_ends_it():
    engine = PolicyEngine((orphans(notice="0s", all=True, match={"users": ["alice", "*"]}),))
    assert len(run(engine, with_rank(), [0.0, 30.0, 60.0])) == 1


@pytest.mark.fault(16)
def test_who_is_named_as_a_whole_is_meant_root_too():
    found = with_rank(user="root", uid=0)
    engine = PolicyEngine((orphans(notice="0s", match={"users": ["alice", "root"]}),))
    assert len(run(engine, found, [0.0, 30.0, 60.0])) == 1


@pytest.mark.fault(16)
def test_a_job_that_the_service_itself_descends_from_is_left_alone():
    engine = PolicyEngine((ALONE,))
    assert run(engine, JOB, [0.0, 30.0, 60.0, 90.0], own_pids=frozenset({1, 21, 400})) == []


def _dead(entry: Entry) -> Entry:
    return replace(entry, holder=replace(entry.holder, started_at=7))


def test_a_pid_that_another_process_has_now_starts_it_again():
    engine = PolicyEngine((ALONE,))
    run(engine, JOB, [0.0, 30.0])
    reused = ledger(gpu(rank(20, 0), process(30, user="bob")), gpu(_dead(rank(21, 1)), index=1))
    assert run(engine, reused, [50.0, 80.0, 109.0]) == []
    assert [each.targets[1].identity for each in run(engine, reused, [110.0])] == [(21, 7)]


# ---- its table ----

BASE: dict[str, Any] = {"name": "p", "do": "end-orphans"}
NOTIFY = {"notify": {"terminals": True}}


def test_its_defaults():
    (made,) = read_policies([{**BASE, **NOTIFY}])
    assert (made.mode, made.after_s, made.idle_s, made.notice_s) == ("dry-run", 3600.0, 1800.0, 900.0)


@pytest.mark.parametrize(
    ("given_", "said", "hint"),
    [
        ({}, "would tell no owner", 'notice = "0s"'),
        ({"notice": "0s", **NOTIFY}, "sends no message", "leave one"),
        ({"idle": "0s", **NOTIFY}, "idle = '0s'", "10s"),
        ({"idle": 30, **NOTIFY}, "idle = 30", "30s"),
        ({"notice": "8d", **NOTIFY}, "notice = '8d'", "15min"),
        ({"unpark-after": "1s", **NOTIFY}, "no key 'unpark-after'", "known"),
        ({"again-after": "1h", **NOTIFY}, "no key 'again-after'", ""),
        ({"match": {"codes": ["VR208"]}, **NOTIFY}, "no key 'codes'", ""),
        ({"mode": "act", **NOTIFY}, "would act on everything", "all = true"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(given_: dict[str, Any], said: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        read_policies([{**BASE, **given_}])
    assert said in str(caught.value)
    assert hint in caught.value.hint


def test_no_other_policy_has_its_keys():
    with pytest.raises(ConfigError, match="no key 'idle'"):
        read_policies([{"name": "p", "do": "end-leftovers", "idle": "1min"}])
