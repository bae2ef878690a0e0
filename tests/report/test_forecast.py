"""When a GPU is full, in words: no more exact than is known."""

from __future__ import annotations

import pytest

from vram.model.forecast import Forecast, GrowingHold, Growth
from vram.report.forecast import forecast_text, until_full
from vram.units import GIB, MIB


def growth(a_minute: int) -> Growth:
    rate = a_minute / 60
    return Growth(bytes_per_s=rate, least_bytes_per_s=rate, most_bytes_per_s=rate, span_s=600.0, apart_s=37.5)


def growing(pid: int | None = 4711, **more: object) -> GrowingHold:
    facts = {"nbytes": GIB, "full_in_s": 260.0, "pid": pid}
    return GrowingHold(**{**facts, "growth": growth(1229 * MIB), **more})  # type: ignore[arg-type]


def forecast(full_s: float, earliest_s: float, latest_s: float, *holds: GrowingHold) -> Forecast:
    return Forecast(
        gpu=0,
        place="0",
        free_bytes=5 * GIB,
        full_in_s=full_s,
        earliest_s=earliest_s,
        latest_s=latest_s,
        growth=growth(1229 * MIB),
        growing=holds or (growing(),),
    )


def test_it_names_time_program_rate_and_line():
    found = forecast(260.0, 170.0, 350.0, growing(line="train.py:88", command="python train.py"))
    expected = (
        "GPU 0 full in 4 min at this rate (2 min to 6 min); pid 4711 grows by 1.2 GiB/min at train.py:88"
    )
    assert forecast_text(found) == expected


def test_without_a_recorder_it_names_the_program():
    found = forecast(260.0, 250.0, 290.0, growing(command="/opt/bin/python train.py"), growing(7))
    expected = (
        "GPU 0 full in 4 min at this rate; pid 4711 grows by 1.2 GiB/min: python train.py, and 1 other too"
    )
    assert forecast_text(found) == expected


def test_a_command_of_any_length_is_one_short_line():
    text = forecast_text(forecast(260.0, 250.0, 290.0, growing(command="python -c\n" + "x" * 100_000)))
    assert len(text) < 300
    assert "\n" not in text


def test_memory_of_nobody_is_said_to_be_that():
    text = forecast_text(forecast(260.0, 250.0, 290.0, growing(None)))
    assert text == "GPU 0 full in 4 min at this rate; memory of no visible process grows by 1.2 GiB/min"


@pytest.mark.parametrize(
    ("full_s", "text"),
    [
        (0.0, "full in a few seconds at this rate"),
        (47.0, "full in 40 s at this rate"),
        (119.0, "full in 1 min 50 s at this rate"),
        (3599.0, "full in 59 min at this rate"),
        (5000.0, "full in 1 h 20 min at this rate"),
        (9999.0, "full in 2 h 30 min at this rate"),
        (200_000.0, "full in 2 d 6 h at this rate"),
    ],
)
def test_a_time_is_as_exact_as_it_is_known(full_s: float, text: str):
    assert until_full(forecast(full_s, full_s, full_s)) == text


def test_it_runs_on_with_the_age_of_the_reading():
    assert until_full(forecast(260.0, 260.0, 260.0), 140.0) == "full in 2 min at this rate"
    assert until_full(forecast(260.0, 260.0, 260.0), 500.0) == "full in a few seconds at this rate"


def test_what_grows_slowly_is_told_by_the_hour():
    found = forecast(260.0, 260.0, 260.0, growing(growth=growth(50 * MIB)))
    assert "grows by 2.9 GiB/h" in forecast_text(found)
