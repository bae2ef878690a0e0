"""Forecasts as a part of the service: when each GPU will be full, made anew with every reading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import NotPermitted
from vram.forecast.forecaster import Forecaster
from vram.forecast.lines import GrowingLines
from vram.model.forecast import Forecast
from vram.model.hold import Identity
from vram.model.moment import Moment, rfc3339
from vram.report.escape import inert
from vram.serve.part import ServicePart, gauge
from vram.serve.socket.peers import owner_of
from vram.serve.socket.worker import WorkerRequest
from vram.serve.socket.worker_process import start_worker
from vram.serve.viewer import Viewer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading


_LINE_S, _MAX_LINE = 30.0, 200


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
        self._lines = GrowingLines()
        self._asking: asyncio.Task[None] | None = None

    async def on_reading(self, reading: Reading) -> None:
        if reading.ledger is None:
            return
        if reading.error is not None:
            self._forecaster.expire(reading.moment, self._service.longest_pause_s)
            return
        self._forecaster.take(reading.ledger, reading.moment, self._service.longest_pause_s)
        self._made = reading.moment
        self._ask_for_a_line(reading.moment.boot)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def reload(self, config: ServeConfig) -> None:
        """With another interval, or another time that growth must last, everything begins anew."""
        made = _forecaster(config)
        if made.spans != self._forecaster.spans:
            self._forecaster = made

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """As of the last good reading."""
        return self._lines.added_to(self._forecaster.forecasts)

    @property
    def made(self) -> Moment | None:
        """When the last good reading was."""
        return self._made

    def _ask_for_a_line(self, boot: float) -> None:
        """One at a time, and only where readers may see it."""
        process = self._lines.due(self._forecaster.forecasts, boot)
        is_shown = self._service.config.show.commands == "always"
        if process is not None and is_shown and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_for(process, boot))

    async def _ask_for(self, process: Identity, boot: float) -> None:
        """Ask a worker with the rights of the owner, whose file a recording is."""
        pid, started_at = process
        owner = owner_of(pid, started_at) if started_at is not None else None
        line = ""
        if owner is not None and started_at is not None:
            with suppress(NotPermitted):
                order = WorkerRequest(job="growing-line", targets=((pid, started_at),))
                worker = start_worker(order, owner, _LINE_S)
                try:
                    answer = await worker.last()
                    line = "" if answer.error else inert(answer.message[:_MAX_LINE])
                finally:
                    worker.end(late=False)
                    await worker.has_ended.wait()
        self._lines.note(process, boot, line or None)

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
