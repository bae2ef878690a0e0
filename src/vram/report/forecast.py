"""Forecasts in words: when a GPU will be full, and which program grows. Plain strings, not yet escaped."""

from __future__ import annotations

from math import ceil, floor

from vram.model.forecast import Forecast, GrowingHold, Growth
from vram.report.phrases import one_line, without_folder
from vram.units import MIB, counted, duration, size

# How exact a time is told: from so many seconds on, in steps of so many.
_STEPS_S = ((0, 10), (120, 60), (3600, 300), (7200, 1800), (86400, 21600))
_MIN_A_MINUTE = 100 * MIB
_MAX_COMMAND = 160


def forecast_text(forecast: Forecast, age_s: float = 0.0) -> str:
    """One line; *age_s* is how long ago the reading was that *forecast* was made of."""
    return f"{_place(forecast)} {until_full(forecast, age_s)}; {growth_text(forecast)}"


def until_full(forecast: Forecast, age_s: float = 0.0) -> str:
    """Return "full in 4 min at this rate (3 min to 6 min)"."""
    full_s = forecast.full_in_s - age_s
    step_s = _step_s(full_s)
    if full_s < step_s:
        return "full in a few seconds at this rate" if step_s < 60 else "full in a minute at this rate"
    earliest_s = floor(max(0.0, forecast.earliest_s - age_s) / step_s) * step_s
    latest_s = ceil((forecast.latest_s - age_s) / step_s) * step_s
    interval = (
        f" ({duration(earliest_s)} to {duration(latest_s)})" if latest_s - earliest_s > 2 * step_s else ""
    )
    return f"full in {duration(floor(full_s / step_s) * step_s)} at this rate{interval}"


def growth_text(forecast: Forecast) -> str:
    """Which program grows the fastest, where that is known in which line, and how many others do."""
    first, *others = forecast.growing
    more = f", and {counted(len(others), 'other')} too" if others else ""
    return f"{_who(first)} grows by {rate_text(first.growth)}{_where(first)}{more}"


def rate_text(growth: Growth) -> str:
    """Return "1.2 GiB/min", or by the hour where that is little."""
    a_minute = growth.bytes_per_s * 60
    return f"{size(int(a_minute))}/min" if a_minute >= _MIN_A_MINUTE else f"{size(int(a_minute * 60))}/h"


def _step_s(seconds: float) -> int:
    return [step_s for from_s, step_s in _STEPS_S if seconds >= from_s or from_s == 0][-1]


def _place(forecast: Forecast) -> str:
    return f"{'MIG' if ':' in forecast.place else 'GPU'} {forecast.place}"


def _who(growing: GrowingHold) -> str:
    if growing.pid is None:
        return "memory of no visible process"
    return f"pid {growing.pid}"


def _where(growing: GrowingHold) -> str:
    if growing.line is not None:
        return f" at {growing.line}"
    command = without_folder(one_line(growing.command or ""))
    cut = command[:_MAX_COMMAND] + ("…" if len(command) > _MAX_COMMAND else "")
    return f": {cut}" if command else ""
