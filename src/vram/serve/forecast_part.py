"""Forecasts as a part of the service: when each GPU will be full, made anew with every reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.forecast.forecaster import Forecaster
from vram.model.forecast import Forecast
from vram.model.moment import Moment, rfc3339
from vram.serve.part import ServicePart, gauge
from vram.serve.viewer import Viewer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading


class ForecastsReport(Struct, frozen=True, kw_only=True):
    """The GPUs that will be full if what grows goes on growing, the soonest first; read at ``taken_at``."""

    schema: Literal[1] = 1
    taken_at: str | None
    forecasts: tuple[Forecast, ...]


class ForecastPart(ServicePart):
    """Forecasts of the last good reading; none where that is too long ago."""

    name = "forecasts"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._forecaster = _forecaster(service.config)
        self._made: Moment | None = None

    async def on_reading(self, reading: Reading) -> None:
        if reading.ledger is None:
            return
        if reading.error is not None:
            self._forecaster.expire(reading.moment, self._service.longest_pause_s)
            return
        self._forecaster.take(reading.ledger, reading.moment, self._service.longest_pause_s)
        self._made = reading.moment

    async def reload(self, config: ServeConfig) -> None:
        """With another interval, or another time that growth must last, everything begins anew."""
        made = _forecaster(config)
        if made.spans != self._forecaster.spans:
            self._forecaster = made

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """As of the last good reading."""
        return self._forecaster.forecasts

    @property
    def made(self) -> Moment | None:
        """When the last good reading was."""
        return self._made

    def report(self, who: Viewer) -> ForecastsReport:
        """The forecasts as *who* may see them."""
        made = self._made
        taken_at = None if made is None else rfc3339(self._service.clock.now().wall_of(made))
        return ForecastsReport(taken_at=taken_at, forecasts=tuple(visible_to(who, self.forecasts)))

    def metrics(self) -> Iterable[Metric]:
        if self._made is None:
            return
        made_at = self._service.clock.now().wall_of(self._made)
        found = [((str(each.gpu), each.place if ":" in each.place else ""), each) for each in self.forecasts]
        full = [(labels, made_at + each.full_in_s) for labels, each in found]
        earliest = [(labels, made_at + each.earliest_s) for labels, each in found]
        latest = [(labels, made_at + each.latest_s) for labels, each in found]
        growth = [(labels, each.growth.bytes_per_s) for labels, each in found]
        labels = ("gpu", "mig")
        what = "when the GPU, or MIG instance, will be full at the rate of now"
        yield gauge("vram_gpu_full_timestamp_seconds", what, full, *labels)
        what = "the earliest moment for that which is likely"
        yield gauge("vram_gpu_full_earliest_timestamp_seconds", what, earliest, *labels)
        what = "the latest moment for that which is likely"
        yield gauge("vram_gpu_full_latest_timestamp_seconds", what, latest, *labels)
        what = "how fast the memory in use grows, where that goes on"
        yield gauge("vram_gpu_growth_bytes_per_second", what, growth, *labels)


def _forecaster(config: ServeConfig) -> Forecaster:
    return Forecaster(config.interval_s, config.forecast.after_s)


def visible_to(who: Viewer, forecasts: Iterable[Forecast]) -> Iterator[Forecast]:
    """*forecasts* with the names that *who* may see. A line of a program is in /proc for nobody."""
    for each in forecasts:
        growing = tuple(map(who.named, each.growing))
        if who.others != "everything":
            growing = tuple(replace(one, line=None) for one in growing)
        yield replace(each, growing=growing)
