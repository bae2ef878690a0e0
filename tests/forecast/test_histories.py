"""How often forecasts are wrong, counted on histories of programs that leak and of programs that do not.

`python -m tests.forecast.histories` counts on a hundred of each, which is what the guide says.
"""

from __future__ import annotations

import os

import pytest

from tests.forecast.histories import LEAKS, QUIET, forecasts, leaking, quiet, run, slow_pool

HISTORIES = int(os.environ.get("VRAM_FORECAST_HISTORIES", "10"))
"""Of each kind; two days of a server take longest."""


@pytest.mark.parametrize("kind", QUIET)
def test_no_alarm_where_nothing_leaks(kind: str):
    histories = max(2, HISTORIES // 5) if QUIET[kind].hours > 4 else HISTORIES
    wrong = [seed for seed in range(histories) if quiet(kind, seed).alarms]
    assert len(wrong) <= histories // 100, wrong


@pytest.mark.parametrize("kind", LEAKS)
def test_every_leak_is_announced_five_minutes_before_the_gpu_is_full(kind: str):
    found = [leaking(kind, seed) for seed in range(HISTORIES)]
    leads = [each.lead_s for each in found]
    assert all(lead is not None and lead >= 300.0 for lead in leads), leads
    assert sum(max(0, each.flickers) for each in found) <= HISTORIES


@pytest.mark.parametrize("kind", LEAKS)
def test_the_interval_holds_the_truth(kind: str):
    found = [leaking(kind, seed).covered for seed in range(HISTORIES)]
    right, said = sum(each[0] for each in found), sum(each[1] for each in found)
    # Of growth that hastens, the interval knows no more than how much it has hastened so far.
    assert right >= (0.5 if kind == "faster and faster" else 0.9) * said > 0


def test_a_pool_that_takes_long_is_mistaken_once_at_most_and_never_after_it_was_collected():
    """Until it is collected for the first time, nothing tells it from a leak."""
    for seed in range(HISTORIES):
        pool = slow_pool(seed)
        reads = list(run(pool, until_s=3 * 3600.0))
        sizes = [sum(read.held.values()) for read in reads if read.held]
        fell = next(reads[at].at_s for at in range(1, len(sizes)) if sizes[at] < sizes[at - 1] * 0.9)
        # A cut cycle that came first says nothing of how high it goes.
        again = next(
            read.at_s
            for read, now, then in zip(reads[1:], sizes[1:], sizes, strict=False)
            if read.at_s > fell and now < then * 0.9
        )
        alarms = forecasts(iter(reads)).alarms
        assert [at for at in alarms if at > again] == [], seed
