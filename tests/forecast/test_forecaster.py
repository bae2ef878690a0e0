"""Forecasts from readings as they come: gaps, clocks, lost GPUs, unknown sizes, programs that end."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from tests.forecast.histories import PAUSE_S, TOTAL, Found, Read, forecasts, ledger, run
from tests.policy.conftest import holder, unexplained
from tests.policy.conftest import ledger as whole_ledger
from vram.forecast.forecaster import Forecaster
from vram.forecast.series import MAX_BLOCKS, Series, find_growth
from vram.model.forecast import Forecast
from vram.model.ledger import Entry, GpuLedger, Instance, Ledger, MigDevice
from vram.model.moment import Moment
from vram.units import GIB

RATE = GIB / 30
"""What the programs here leak in a second: an empty GPU is full after 40 minutes."""


def growing(at_s: float, rate: float = RATE, base: float = 0.0) -> float:
    return base + rate * at_s


def at(seconds: float, wall_s: float = 0.0, boot_id: str = "boot") -> Moment:
    return Moment(1_800_000_000.0 + seconds + wall_s, 1000.0 + seconds, boot_id)


def last(found: Found) -> Forecast | None:
    return found.reads[-1][1]


def take(forecaster: Forecaster, made: Callable[[float], Ledger], seconds: range) -> Forecast | None:
    for second in seconds:
        forecaster.take(made(float(second)), at(float(second)), PAUSE_S)
    return forecaster.forecasts[0] if forecaster.forecasts else None


def test_what_grows_evenly_is_forecast_to_the_minute_with_its_program_and_its_rate():
    found = last(forecasts(run(growing, until_s=1200.0)))
    assert found is not None
    assert found.full_in_s == pytest.approx(TOTAL / RATE - 1200.0, rel=0.03)
    assert found.earliest_s <= found.full_in_s <= found.latest_s
    assert found.growth.bytes_per_s == pytest.approx(RATE, rel=0.03)
    (program,) = found.growing
    assert (program.pid, program.command, found.gpu, found.place) == (1, "python 1.py", 0, "0")


def test_nothing_is_said_before_growth_has_lasted_five_minutes():
    reads = forecasts(run(lambda at_s: growing(at_s, 2 * RATE), until_s=900.0)).reads
    first = next(seconds for seconds, each in reads if each is not None)
    assert 300.0 <= first <= 340.0


def test_the_first_five_minutes_of_a_program_do_not_count():
    reads = forecasts(run(lambda at_s: growing(at_s, 1.5 * RATE), until_s=1200.0), is_young=True).reads
    first = next(seconds for seconds, each in reads if each is not None)
    assert 600.0 <= first <= 640.0


def test_two_programs_fill_a_gpu_together_and_the_faster_one_comes_first():
    reads = run(growing, lambda at_s: growing(at_s, RATE / 2, GIB), until_s=900.0)
    found = last(forecasts(reads))
    assert found is not None
    assert [each.pid for each in found.growing] == [1, 2]
    assert found.growth.bytes_per_s == pytest.approx(1.5 * RATE, rel=0.03)
    assert found.full_in_s < found.growing[0].full_in_s < found.growing[1].full_in_s


def test_a_program_that_ends_takes_its_forecast_along():
    def until_800(at_s: float) -> float | None:
        return growing(at_s) if at_s < 800.0 else None

    reads = forecasts(run(until_800, lambda at_s: 20.0 * GIB, until_s=900.0)).reads
    assert {each is not None for seconds, each in reads if 600.0 < seconds < 800.0} == {True}
    assert {each for seconds, each in reads if seconds >= 800.0} == {None}


@pytest.mark.parametrize("stops_s", [900.0, 2300.0])
def test_growth_that_stops_is_no_longer_forecast_soon_after(stops_s: float):
    reads = forecasts(run(lambda at_s: growing(min(at_s, stops_s)), until_s=stops_s + 1800.0)).reads
    ended = max(seconds for seconds, each in reads if each is not None)
    assert stops_s < ended < stops_s + 180.0


def test_what_is_released_is_believed_at_once():
    """A trim, say: what was free five minutes ago says nothing then."""
    reads = forecasts(run(lambda at_s: growing(at_s) - 15 * GIB * (at_s >= 900.0), until_s=910.0)).reads
    assert [each is None for _, each in reads[-3:]] == [False, True, True]


def test_the_release_of_another_program_moves_the_moment():
    def other(at_s: float) -> float:
        return 30.0 * GIB if at_s < 900.0 else 5.0 * GIB

    reads = forecasts(run(growing, other, until_s=910.0)).reads
    before, after = reads[-3][1], reads[-1][1]
    assert before is not None
    assert after is not None
    assert after.free_bytes - before.free_bytes == pytest.approx(25 * GIB, rel=0.05)


def test_what_steps_hold_at_once_is_not_counted_as_free():
    reads = run(growing, lambda at_s: GIB * (10 + 20 * (int(at_s / 5) % 2)), until_s=903.0)
    found = last(forecasts(reads))
    assert found is not None
    assert found.free_bytes == pytest.approx(TOTAL - 30 * GIB - growing(900.0), rel=0.05)


# ---- readings that do not come, and clocks ----


def _without(reads: Iterator[Read], begin_s: float, end_s: float, *, lost: bool = False) -> Iterator[Read]:
    for read in reads:
        if not begin_s <= read.at_s < end_s:
            yield read
        elif lost:
            yield read._replace(lost=True)
        else:
            yield read._replace(held=None)


@pytest.mark.parametrize("lost", [False, True], ids=["failed", "lost"])
def test_readings_that_fail_for_a_moment_end_nothing(lost: bool):
    reads = forecasts(_without(run(growing, until_s=900.0), 700.0, 740.0, lost=lost)).reads
    after = [each for seconds, each in reads if seconds >= 740.0]
    assert None not in after
    assert after[-1].full_in_s == pytest.approx(TOTAL / RATE - 900.0, rel=0.05)


@pytest.mark.parametrize("lost", [False, True], ids=["failed", "lost"])
def test_after_a_longer_gap_everything_begins_anew(lost: bool):
    reads = forecasts(_without(run(growing, until_s=1200.0), 600.0, 700.0, lost=lost)).reads
    assert {each for seconds, each in reads if 660.0 <= seconds < 990.0} == {None}
    assert reads[-1][1] is not None


def test_a_lost_gpu_has_no_forecast():
    reads = forecasts(_without(run(growing, until_s=900.0), 700.0, 740.0, lost=True)).reads
    assert {each for seconds, each in reads if 700.0 <= seconds < 740.0} == {None}


def test_a_lost_gpu_ends_nothing_of_its_programs_on_others_nor_their_own_on_it_for_a_moment():
    """A rank that is on two GPUs, of which one does not answer now and then."""

    def made(second: float) -> Ledger:
        mine = holder(7)
        sizes = int(growing(second)) + 1, int(growing(second, 0.9 * RATE)) + 1
        gpus = [
            GpuLedger(
                index=at,
                uuid=f"GPU-{at}",
                name="H200",
                total_bytes=TOTAL,
                entries=(
                    Entry(kind="process", nbytes=nbytes, holder=mine),
                    Entry(kind="free", nbytes=TOTAL - nbytes),
                ),
            )
            for at, nbytes in enumerate(sizes)
        ]
        if 700 <= second < 730:
            gpus[1] = replace(gpus[1], status="lost", total_bytes=None, entries=())
        return whole_ledger(*gpus)

    forecaster = Forecaster(5.0)
    take(forecaster, made, range(0, 700, 5))
    assert [each.gpu for each in forecaster.forecasts] == [0, 1]
    take(forecaster, made, range(700, 730, 5))
    assert [each.gpu for each in forecaster.forecasts] == [0]
    take(forecaster, made, range(730, 735, 5))
    assert [each.gpu for each in forecaster.forecasts] == [0, 1]


def test_a_wall_clock_that_is_set_changes_nothing():
    def jumping(reads: Iterator[Read]) -> Iterator[Read]:
        for read in reads:
            yield read._replace(wall_s=read.wall_s + (-90_000.0 if read.at_s > 600.0 else 0.0))

    assert forecasts(jumping(run(growing, until_s=900.0))) == forecasts(run(growing, until_s=900.0))


def test_a_suspended_machine_begins_anew():
    def suspended(reads: Iterator[Read]) -> Iterator[Read]:
        for read in reads:
            yield read._replace(at_s=read.at_s + (3600.0 if read.at_s > 600.0 else 0.0))

    reads = forecasts(suspended(run(growing, until_s=1200.0))).reads
    assert {each for seconds, each in reads if 4200.0 < seconds < 4500.0} == {None}
    assert reads[-1][1] is not None


def test_another_boot_begins_anew():
    forecaster = Forecaster(5.0)
    assert take(forecaster, _one(growing), range(0, 600, 5)) is not None
    assert forecaster.take(_one(growing)(600.0), at(600.0, boot_id="next"), PAUSE_S) == ()


def test_a_ledger_in_which_nothing_changed_costs_nothing_and_ends_growth_that_has_stopped():
    forecaster = Forecaster(5.0)
    assert take(forecaster, _one(growing), range(0, 600, 5)) is not None
    same = _one(growing)(600.0)
    assert take(forecaster, lambda second: same, range(600, 900, 5)) is None


# ---- what a GPU shows ----


def _one(program: Callable[[float], float]) -> Callable[[float], Ledger]:
    return lambda second: ledger({1: int(program(second)) + 1}, {1: 3600.0 + second})


def test_a_size_that_is_unknown_has_no_forecast():
    def unknown(second: float) -> Ledger:
        made = _one(growing)(second)
        gpu = made.gpus[0]
        entries = (replace(gpu.entries[0], nbytes=None), *gpu.entries[1:])
        return replace(made, gpus=(replace(gpu, entries=entries),)) if second >= 600.0 else made

    forecaster = Forecaster(5.0)
    assert take(forecaster, unknown, range(0, 600, 5)) is not None
    assert take(forecaster, unknown, range(600, 900, 5)) is None


def test_a_gpu_that_does_not_say_what_is_free_has_no_forecast():
    def unreported(second: float) -> Ledger:
        made = _one(growing)(second)
        gpu = made.gpus[0]
        entries = (gpu.entries[0], replace(gpu.entries[1], kind="unreported"))
        return replace(made, gpus=(replace(gpu, entries=entries),))

    assert take(Forecaster(5.0), unreported, range(0, 900, 5)) is None


def test_memory_that_nobody_accounts_for_is_forecast_without_a_program():
    def made(second: float) -> Ledger:
        nbytes = int(growing(second)) + 1
        free = Entry(kind="free", nbytes=TOTAL - nbytes)
        gpu = GpuLedger(
            index=3, uuid="GPU-3", name="H200", total_bytes=TOTAL, entries=(unexplained(nbytes), free)
        )
        return whole_ledger(gpu)

    found = take(Forecaster(5.0), made, range(0, 900, 5))
    assert found is not None
    assert (found.gpu, found.growing[0].pid, found.growing[0].command) == (3, None, None)


def test_each_mig_instance_is_full_by_itself():
    half = TOTAL // 2

    def made(second: float) -> Ledger:
        nbytes = int(growing(second)) + 1
        devices = (MigDevice(index=0, uuid="MIG-0", name="MIG 3g.40gb", compute_instance=0),)
        entries = (
            Entry(kind="process", nbytes=nbytes, holder=holder(7), gpu_instance=1, compute_instance=0),
            Entry(kind="free", nbytes=half - nbytes, gpu_instance=1),
            Entry(kind="unassigned", nbytes=TOTAL - half),
        )
        instance = Instance(gpu_instance=1, devices=devices, total_bytes=half)
        gpu = GpuLedger(
            index=0, uuid="GPU-0", name="H200", total_bytes=TOTAL, entries=entries, instances=(instance,)
        )
        return whole_ledger(gpu)

    found = take(Forecaster(5.0), made, range(0, 600, 5))
    assert found is not None
    assert (found.gpu, found.place) == (0, "0:0")
    assert found.full_in_s == pytest.approx(half / RATE - 595.0, rel=0.05)


def test_a_program_that_starts_and_ends_a_thousand_processes_leaves_nothing_behind():
    forecaster = Forecaster(1.0)

    def churned(second: float) -> Ledger:
        pids = range(int(second) * 50 + 1, int(second) * 50 + 51)
        return ledger(dict.fromkeys(pids, GIB), dict.fromkeys(pids, 0.0))

    assert take(forecaster, churned, range(20)) is None
    tracemalloc.start()
    try:
        take(forecaster, churned, range(20, 30))
        before = tracemalloc.get_traced_memory()[0]
        take(forecaster, churned, range(30, 130))
        assert tracemalloc.get_traced_memory()[0] - before < 200_000
    finally:
        tracemalloc.stop()
    assert forecaster.forecasts == ()


# ---- one series ----


def test_eight_levels_that_rise_by_chance_are_needed_and_no_less():
    assert find_growth(range(7), 1.0) is None
    found = find_growth(range(8), 2.0)
    assert found is not None
    assert (found.bytes_per_s, found.span_s, found.apart_s) == (0.5, 16.0, 2.0)
    assert find_growth([0, 1, 2, 4, 3, 5, 6, 7], 1.0) is None
    assert find_growth([0, 1, 2, 4, 3, 5, 6, 7], 1.0, is_known=True) is not None


def test_a_level_that_was_held_before_and_released_is_no_growth():
    assert find_growth(range(8), 1.0, highest_before=8) is None
    assert find_growth(range(8), 1.0, highest_before=7) is not None


def test_blocks_in_which_nothing_changed_are_as_if_each_had_been_read():
    """However many, and wherever they begin: the same levels at every scale."""
    changes = {3: 5, 4: 9, 11: 7, 12: 30, 13: 31, 77: 60, 300: 61, 301: 62, 999: 64, 1000: 63, 1001: 70}
    read, skipped = Series(3, 5, 1.0), Series(3, 5, 1.0)
    for block in range(4, 1100):
        read.add(block, changes.get(block, read.nbytes))
        if block in changes:
            skipped.add(block, changes[block])
    skipped.add(1099, skipped.nbytes)
    levels = [[(list(each.lows), each.half) for each in series._scales] for series in (read, skipped)]
    assert levels[0] == levels[1]
    assert max(len(lows) for lows, _ in levels[0]) == MAX_BLOCKS


def test_a_steady_leak_is_the_same_wherever_its_blocks_begin():
    for offset in range(0, 40, 7):
        found = last(forecasts(run(lambda at_s, offset=offset: growing(at_s + offset), until_s=900.0)))
        assert found is not None
        assert found.growth.bytes_per_s == pytest.approx(RATE, rel=0.05)
