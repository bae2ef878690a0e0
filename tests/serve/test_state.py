"""What the service remembers between readings: ages by a clock that never goes back, ghosts, changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.ledger.world import CONTEXT, World
from vram.diagnosis.busy import CODE
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.live_reader import LiveReading
from vram.model.gpu import GpuFacts
from vram.model.ledger import Ledger
from vram.model.moment import Moment, rfc3339
from vram.serve.state import MAX_CHANGES, ServiceState
from vram.units import GIB

START = Moment(1_800_000_000.0, 1000.0, "boot")


def later(seconds: float, wall: float | None = None) -> Moment:
    return Moment(START.wall + seconds if wall is None else wall, START.boot + seconds, START.boot_id)


def reading(ledger: Ledger | None, error: str | None = None) -> LiveReading:
    findings = diagnose(ledger) if ledger else ()
    return LiveReading(taken_at="", took_s=0.0, ledger=ledger, findings=findings, error=error)


def ghost_world(nbytes: int = GIB) -> Ledger:
    world = World().gpu(0, used=nbytes + CONTEXT)
    world.charge(200, nbytes + CONTEXT).process(201).files(201, family=200)
    return build_ledger(world.survey())


def empty_world() -> Ledger:
    return build_ledger(World().gpu(0).survey())


@pytest.mark.fault(30)
@given(st.lists(st.tuples(st.floats(0.0, 1e7), st.floats(-1e9, 1e9)), min_size=2, max_size=20))
def test_ages_never_go_back_whatever_the_wall_clock_does(steps: list[tuple[float, float]]) -> None:
    """Each step is time that passes, suspended or not, and a jump of the wall clock."""
    moments, boot, wall = [START], START.boot, START.wall
    for passed, jump in steps:
        boot += passed
        wall += passed + jump
        moments.append(Moment(wall, boot, START.boot_id))
    ages = [moment.since(START) for moment in moments]
    assert ages == sorted(ages)
    assert ages[-1] == pytest.approx(boot - START.boot)
    # A timestamp for people lies as far back as the age says, by the clock of now.
    assert moments[-1].wall - moments[-1].wall_of(START) == pytest.approx(ages[-1], abs=1e-3)


@pytest.mark.fault(30)
def test_across_a_boot_an_age_is_never_negative() -> None:
    after = Moment(START.wall - 50.0, 3.0, "another boot")
    assert after.since(START) == 0.0
    assert Moment(START.wall + 60.0, 3.0, "another boot").since(START) == 60.0


@pytest.mark.parametrize("wall", [-1e12, -1.0, 0.0, 1e12, 1e18])
def test_a_clock_that_is_set_to_nonsense_is_still_a_date(wall: float) -> None:
    assert len(rfc3339(wall)) == 20


def test_a_ghost_that_a_failed_gpu_still_shows_is_counted_once() -> None:
    state = ServiceState(START)
    ledger = ghost_world()
    state.take(reading(ledger), later(5))
    (gpu,) = ledger.gpus
    state.take(reading(replace(ledger, gpus=(replace(gpu, status="failed"),))), later(10))
    assert [each.since for each in state.ghosts] == [later(5)]


@pytest.mark.fault(30)
def test_a_ghost_keeps_its_age_through_a_jump_of_the_clock() -> None:
    state = ServiceState(START)
    state.take(reading(ghost_world()), later(5))
    for moment in (later(10, wall=0.0), later(15, wall=4e9), later(20)):
        state.take(reading(ghost_world()), moment)
    (ghost,) = state.ghosts
    assert later(20).since(ghost.since) == 15.0
    assert ghost.nbytes == GIB + CONTEXT


def test_a_ghost_on_a_gpu_that_does_not_answer_is_not_forgotten() -> None:
    state = ServiceState(START)
    state.take(reading(ghost_world()), later(5))
    ledger = ghost_world()
    (gpu,) = ledger.gpus
    silent = replace(ledger, gpus=(replace(gpu, status="timeout", total_bytes=None, entries=()),))
    state.take(reading(silent), later(10))
    state.take(reading(None, "the reading process has ended"), later(15))
    assert [later(15).since(each.since) for each in state.ghosts] == [10.0]
    state.take(reading(empty_world()), later(20))
    assert not state.ghosts


def test_an_error_keeps_the_last_ledger_and_its_age() -> None:
    state = ServiceState(START)
    first = state.take(reading(ghost_world()), later(5))
    second = state.take(reading(None, "no answer"), later(10))
    assert second.ledger is first.ledger
    assert state.good is first
    assert state.last is second
    assert state.readings == {"ok": 1, "failed": 1}


def test_changes_are_numbered_and_only_the_last_thousand_are_kept() -> None:
    state = ServiceState(START)
    worlds = [ghost_world(GIB), empty_world()]
    for number in range(4 * MAX_CHANGES):
        state.take(reading(worlds[number // 2 % 2]), later(number))
    assert len(state.changes) == MAX_CHANGES
    numbers = [each.number for each in state.changes]
    assert numbers == list(range(numbers[0], numbers[0] + MAX_CHANGES))
    assert state.changes_after(numbers[-2])[0].number == numbers[-1]


def test_a_gpu_that_is_busy_without_a_process_becomes_a_warning_and_one_change() -> None:
    """Also where the ledger stays the same, and nothing but the time goes on."""
    state, ledger = ServiceState(START), empty_world()
    facts = GpuFacts(uuid="GPU-0", name="Virtual GPU", utilization=100)
    busy = replace(ledger, gpus=(replace(ledger.gpus[0], facts=facts),))
    state.take(reading(busy), START)
    found = [state.take(reading(None), later(seconds)) for seconds in range(5, 600, 5)]
    severities = [[each.severity for each in now.findings if each.code == CODE] for now in found]
    assert severities[0] == ["info"]
    assert severities[-1] == ["warning"]
    assert [(each.event, each.code) for now in found for each in now.changes] == [("finding", CODE)]
    assert found[-1].findings is found[-2].findings
