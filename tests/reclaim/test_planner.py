"""Whom a plan may name: leftovers, and who was named; of those as few as the goal needs."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cpu_time import least_cpu_s
from tests.diagnosis.ledgers import TOTAL, entry, forked_child, gpu, holder, host, ledger, process
from tests.diagnosis.test_any_ledger import ledgers
from tests.reclaim.town import Town, as_root
from vram.diagnosis.engine import diagnose
from vram.errors import DeviceError, GoalImpossible, NotOnGpu, NotPermitted, Protected, Refused, UsageError
from vram.ledger.processes import is_healthy
from vram.model.ledger import Ledger, OpenOnly
from vram.model.plan import Draft, PlanRequest
from vram.protected import role
from vram.reclaim.planner import plan
from vram.units import GIB


def planned(world: Ledger, **request) -> Draft:
    asked = {"only": "kill", **request}
    return plan(Town(world), world, diagnose(world), PlanRequest(**asked))


def pids(draft: Draft) -> list[int]:
    return [step.target.process.pid for step in draft.plan.steps]


def orphan(pid: int, nbytes: int = 4 * GIB, **about):
    return entry("orphaned", nbytes, charged_pid=pid + 1000, holder=holder(pid, **about))


def test_a_leftovers_holder_is_planned_with_its_bytes_and_its_finding():
    (step,) = planned(ledger(gpu(orphan(51)))).plan.steps
    assert (step.kind, step.predicted_bytes, step.finding) == ("kill", 4 * GIB, "VR101")
    assert (step.reversible, step.target.command) == (False, "python train.py")


def test_all_holders_of_the_same_bytes_go_and_only_the_last_promises_them():
    shared = entry("orphaned", charged_pid=50, holder=holder(51), co_holders=(holder(52), holder(53)))
    steps = planned(ledger(gpu(shared))).plan.steps
    assert [(step.target.process.pid, step.predicted_bytes) for step in steps] == [
        *((51, 0), (52, 0)),
        (53, 4 * GIB),
    ]


@pytest.mark.parametrize(
    ("goal", "chosen"), [(1, [2]), (2 * GIB, [2]), (2 * GIB + 1, [3]), (4 * GIB, [5]), (6 * GIB, [5, 2])]
)
def test_as_few_as_possible_are_ended(goal, chosen):
    world = ledger(gpu(orphan(52, 2 * GIB), orphan(53, 3 * GIB), orphan(55, 5 * GIB)))
    assert [pid - 50 for pid in pids(planned(world, goal_bytes=goal))] == chosen


def test_a_healthy_process_is_planned_only_by_its_pid():
    world = ledger(gpu(process(1234), orphan(51)))
    assert pids(planned(world)) == [51]
    assert pids(planned(world, pids=(1234,))) == [1234]
    with pytest.raises(GoalImpossible, match=r"at most 4\.0 GiB"):
        planned(world, goal_bytes=5 * GIB)


@pytest.mark.parametrize(
    "state",
    [
        {"executable": "/usr/bin/Xorg"},
        {"executable": None},
        {"user": "bob"},
        {"state": "D"},
    ],
    ids=["protected", "unknown", "somebody else's", "stuck"],
)
def test_a_leftover_whose_holder_may_not_be_touched_is_skipped(state):
    draft = planned(ledger(gpu(orphan(51, **state))))
    assert not draft.plan.steps
    assert [each.pid for each in draft.skipped] == [51]


def test_root_gives_everybodys_leftovers_back():
    world = ledger(gpu(orphan(51, user="bob")), host=host("root", 0))
    assert pids(planned(world)) == [51]
    assert pids(planned(world, only=None)) == [51]


def test_root_ends_nobody_for_a_handle_that_anybody_could_have_handed_over():
    """A hostile user passes an exported handle to another one's service, and ends."""
    handed = entry("exported", holder=holder(51, user="bob"), medium="handle")
    draft = planned(ledger(gpu(handed), host=host("root", 0)))
    assert not draft.plan.steps
    assert [(each.pid, each.command) for each in draft.skipped] == [(51, "")]
    assert pids(planned(ledger(gpu(handed), host=host("root", 0)), pids=(51,))) == [51]


def test_root_goes_into_other_peoples_live_processes_only_by_name():
    world = ledger(gpu(process(51, user="bob")), host=host("root", 0))
    assert pids(planned(world, only=None, park_idle=True)) == []
    assert pids(planned(world, pids=(51,))) == [51]


def test_a_holder_with_work_of_its_own_is_no_leftover():
    world = ledger(gpu(orphan(51), process(51)))
    draft = planned(world)
    assert not draft.plan.steps
    assert "uses GPU memory of its own" in draft.skipped[0].why
    assert pids(planned(world, pids=(51,))) == [51]


def test_a_holder_that_is_only_likely_is_skipped():
    doubtful = entry("orphaned", charged_pid=50, holder=holder(51), confidence="likely")
    assert not planned(ledger(gpu(doubtful))).plan.steps


@pytest.mark.parametrize(
    ("state", "command"), [("t", "grep TracerPid /proc/51/status"), ("T", "kill -CONT 51")]
)
def test_a_stopped_process_is_never_ended_by_itself(state: str, command: str):
    world = ledger(gpu(process(51, state=state)))
    draft = planned(world, only=None)
    assert not draft.plan.steps
    assert [(each.pid, each.command) for each in draft.skipped] == [(51, command)]
    named = [51] if state == "T" else []
    assert pids(planned(world, findings=("VR201",))) == named


def test_a_stopped_holder_of_a_dead_pids_memory_is_not_ended_either():
    draft = planned(ledger(gpu(orphan(51, state="T"))))
    assert not draft.plan.steps
    assert draft.skipped[0].command == "kill -CONT 51"


def test_of_alternatives_no_more_is_promised_than_must_come_back():
    """One child, two dead pids: it holds the memory of one of them, and which is unknown."""
    held = [
        entry("orphaned", nbytes, charged_pid=dead, holder=holder(51), sharing="one", unheld=1)
        for dead, nbytes in ((40, 4 * GIB), (42, 2 * GIB))
    ]
    (step,) = planned(ledger(gpu(*held))).plan.steps
    assert (step.target.process.pid, step.predicted_bytes) == (51, 2 * GIB)


def test_work_on_another_gpu_counts_where_one_gpu_is_asked_about():
    world = ledger(gpu(orphan(51)), gpu(process(51), index=1))
    assert not planned(world, gpus=(0,)).plan.steps


def test_a_size_counts_on_one_gpu_the_one_with_the_least_harm():
    world = ledger(gpu(orphan(51, 3 * GIB), index=0), gpu(orphan(52, 3 * GIB), process(53, 9 * GIB), index=1))
    with pytest.raises(GoalImpossible, match=r"at most 3\.0 GiB"):
        planned(world, only=None, goal_bytes=6 * GIB)
    draft = planned(world, only=None, goal_bytes=2 * GIB, gpus=(1,))
    assert (draft.plan.gpus, pids(draft)) == ((1,), [52])


def test_a_size_that_a_leftover_alone_reaches_parks_nobody():
    world = ledger(gpu(process(50, 30 * GIB), orphan(51, 31 * GIB)))
    draft = planned(world, only=None, goal_bytes=30 * GIB, park_idle=True)
    assert [(step.kind, step.target.process.pid) for step in draft.plan.steps] == [("kill", 51)]


# ---- a size is what is available afterwards ----


def test_a_size_that_is_available_already_needs_nothing_and_names_the_gpu_with_most():
    world = ledger(gpu(orphan(51), index=0), gpu(index=1), gpu(process(53), index=2))
    draft = planned(world, only=None, available_bytes=20 * GIB)
    assert (draft.plan.gpus, draft.plan.goal_bytes, draft.plan.available_bytes) == ((1,), 0, 20 * GIB)
    assert not draft.plan.steps
    assert not draft.skipped
    assert planned(world, only=None, available_bytes=20 * GIB, gpus=(0, 2)).plan.gpus == (0,)


def test_only_what_is_missing_is_freed_on_the_gpu_where_that_is_possible():
    full = TOTAL - 10 * GIB
    world = ledger(
        gpu(process(50, full), index=0),
        gpu(process(51, full), orphan(52, 3 * GIB), orphan(53, 5 * GIB), index=1),
    )
    draft = planned(world, only=None, available_bytes=6 * GIB, gpus=(1,))
    assert (draft.plan.gpus, draft.plan.goal_bytes, pids(draft)) == ((1,), 4 * GIB, [53])
    assert planned(world, only=None, available_bytes=6 * GIB).plan.gpus == (0,)
    with pytest.raises(
        GoalImpossible, match=r"make 11\.0 GiB available .*at most 10\.0 GiB would be available"
    ):
        planned(world, only=None, available_bytes=11 * GIB)


def test_where_no_gpu_says_what_is_available_a_size_is_an_error_that_names_the_other_way():
    world = ledger(replace(gpu(orphan(51)), status="timeout"))
    with pytest.raises(DeviceError, match="how much memory is available") as refused:
        planned(world, only=None, available_bytes=GIB)
    assert "--more" in refused.value.hint


# ---- whom a word means ----


def test_one_holder_of_a_leftover_stands_for_all_unless_it_is_meant_alone():
    shared = entry("orphaned", charged_pid=50, holder=holder(51), co_holders=(holder(52), holder(53)))
    world = ledger(gpu(shared))
    draft = planned(world, pids=(52,))
    assert sorted(pids(draft)) == [51, 52, 53]
    assert {step.reason for step in draft.plan.steps} == {
        "you named pid 52; all of these hold the same memory"
    }
    assert sum(step.predicted_bytes for step in draft.plan.steps) == 4 * GIB
    (step,) = planned(world, pids=(52,), alone=True).plan.steps
    assert (step.target.process.pid, step.predicted_bytes) == (52, 0)


def test_a_worker_among_the_holders_is_not_meant_by_naming_another():
    shared = entry("orphaned", charged_pid=50, holder=holder(51), co_holders=(holder(52),))
    world = ledger(gpu(shared, process(52)))
    assert pids(planned(world, pids=(51,))) == [51]


def test_a_gpu_that_only_has_its_files_opened_is_not_where_a_process_holds_memory():
    world = ledger(gpu(process(50), index=0), gpu(open_only=(OpenOnly(holder=holder(50)),), index=1))
    assert not planned(world, only="trim", gpus=(1,)).plan.steps
    with pytest.raises(NotOnGpu):
        planned(world, only="trim", pids=(50,), gpus=(1,))
    (step,) = planned(world, pids=(50,)).plan.steps
    assert step.gpus == (0,)


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_no_command_that_ends_a_healthy_process_is_offered(user):
    shared = entry("orphaned", charged_pid=40, holder=holder(52, user=user))
    world = ledger(gpu(process(50, user=user), process(52, user=user), shared))
    draft = planned(world, only=None)
    assert {each.pid for each in draft.skipped} == {50, 52}
    assert not any("kill" in each.command for each in draft.skipped)


def test_memory_that_is_left_alone_is_listed_once_with_everybody_who_shares_it():
    busy = entry("process", 8 * GIB, holder=holder(50), co_holders=(holder(61), holder(62)))
    draft = planned(
        ledger(gpu(busy, open_only=(forked_child(61, of=50), forked_child(62, of=50)))), only=None
    )
    assert [(each.pid, each.others, each.nbytes) for each in draft.skipped] == [(50, (61, 62), 8 * GIB)]


def test_where_a_pid_may_name_somebody_else_nothing_is_planned_even_by_name():
    """Inside a container an older driver lists host pids."""
    doubtful = entry(holder=holder(51), confidence="likely")
    inside = ledger(gpu(doubtful), host=host(initial_pid_namespace=False))
    with pytest.raises(NotPermitted, match="may be a different process"):
        planned(inside, pids=(51,))


def test_a_likely_holder_that_is_named_is_planned_for_inside_a_namespace_too():
    """It was found by its open files, whose pids are those of this namespace."""
    kept = entry("exported", holder=holder(51), confidence="likely")
    inside = ledger(gpu(kept), host=host(initial_pid_namespace=False))
    assert pids(planned(inside, pids=(51,))) == [51]


def test_named_pids_are_refused_by_name():
    world = ledger(gpu(process(51, executable="/usr/sbin/sshd"), process(52, user="bob")))
    with pytest.raises(Protected):
        planned(world, pids=(51,))
    with pytest.raises(NotPermitted):
        planned(world, pids=(52,))


def test_a_resident_without_gpu_memory_is_not_on_the_gpu():
    elsewhere = ledger(gpu(), gpu(process(51), index=1))
    narrowed = replace(elsewhere, gpus=elsewhere.gpus[:1])
    with pytest.raises(NotOnGpu):
        plan(Town(elsewhere), narrowed, diagnose(narrowed), PlanRequest(only="kill", pids=(51,)))


def test_a_process_with_open_files_may_be_named():
    world = ledger(gpu(process(50), open_only=(forked_child(51, of=50),)))
    (step,) = planned(world, pids=(51,)).plan.steps
    assert step.predicted_bytes == 0


@pytest.mark.fault(2)
def test_a_reset_is_never_part_of_a_plan():
    with pytest.raises(UsageError):
        planned(ledger(gpu()), only=None, up_to="reset")


def test_the_digest_covers_who_and_what_but_not_when():
    world = ledger(gpu(orphan(51)))
    first, again = planned(world).plan, planned(replace(world, taken_at="later")).plan
    assert first.digest == again.digest
    assert first.made_at != again.made_at
    assert planned(ledger(gpu(orphan(52)))).plan.digest != first.digest
    assert planned(world, goal_bytes=1).plan.digest != first.digest


@pytest.mark.fault(16)
@settings(max_examples=2 * settings().max_examples)
@given(ledgers, st.none() | st.integers(1, 1 << 40), st.booleans(), st.booleans())
def test_whatever_the_ledger_says_the_healthy_and_the_system_are_skipped(world, goal, more, privileged):
    """As root, with no size at all or with a huge one: whoever was not named and works lives."""
    world = replace(world, host=as_root(world.host)) if privileged else world
    people = {each.pid: each for each in Town(world).living.values()}
    assume(all(each.started_at is not None for each in people.values()))
    try:
        draft = planned(world, **{"goal_bytes" if more else "available_bytes": goal})
    except (Refused, DeviceError):
        return
    for pid in pids(draft):
        holder = people[pid]
        assert role(pid, holder) is None
        works = [e for g in world.gpus for e in g.entries if e.holder == holder and e.kind == "process"]
        assert not (works and is_healthy(holder))


@pytest.mark.fault(14)
def test_ten_thousand_processes_on_sixteen_gpus_are_planned_within_a_second_of_work_each():
    many = [
        gpu(
            *(process(10_000 + index * 1000 + each, GIB // 100) for each in range(625)),
            *(orphan(100_000 + index * 10 + each, GIB) for each in range(4)),
            index=index,
        )
        for index in range(16)
    ]
    world = ledger(*many)
    findings, town = diagnose(world), Town(world)
    requests = PlanRequest(only="kill", goal_bytes=4 * GIB), PlanRequest(only="kill")
    enough, everything = (plan(town, world, findings, request) for request in requests)
    assert (len(enough.plan.steps), len(enough.skipped)) == (4, 625)
    assert (len(everything.plan.steps), len(everything.skipped)) == (64, 10_000)
    for request in requests:
        assert least_cpu_s(lambda request=request: plan(town, world, findings, request), 1.0) < 1.0
