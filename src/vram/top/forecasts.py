"""Forecasts in the view: made of its own readings. Which line grows is asked of the recorder, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vram.forecast.forecaster import AFTER_S, Forecaster
from vram.forecast.lines import GrowingLines
from vram.model.forecast import Forecast
from vram.model.hold import Identity
from vram.model.ledger import Ledger
from vram.model.moment import Moment
from vram.trace.growing import growing_line

_MAX_PAUSE_S = 55.0
"""What the service allows between two readings, too, with its usual interval."""


class TopForecasts:
    """The forecasts of the last reading."""

    def __init__(
        self,
        every_s: float,
        after_s: float = AFTER_S,
        ask: Callable[[int], str | None] = growing_line,
    ) -> None:
        self._forecaster = Forecaster(every_s, after_s)
        self._longest_pause_s = max(_MAX_PAUSE_S, 3 * every_s)
        self._ask = ask
        self._lines = GrowingLines()
        self._asking: asyncio.Task[None] | None = None
        self._read_at = 0.0

    def take(self, ledger: Ledger, now: float, *, failed: bool) -> None:
        """Take a reading, or that there is none and *ledger* is the last one."""
        moment = Moment(0.0, now)
        if failed:
            self._forecaster.expire(moment, self._longest_pause_s)
        else:
            self._read_at = now
            self._forecaster.take(ledger, moment, self._longest_pause_s)
        self._ask_for_a_line(now)

    def age_s(self, now: float) -> float:
        """How long ago they were made."""
        return now - self._read_at

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """With the lines that are known."""
        return self._lines.added_to(self._forecaster.forecasts)

    def _ask_for_a_line(self, now: float) -> None:
        """One at a time: a long recording takes a while."""
        process = self._lines.due(self._forecaster.forecasts, now)
        if process is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._ask_for(process, now))

    async def _ask_for(self, process: Identity, now: float) -> None:
        self._lines.note(process, now, await asyncio.to_thread(self._ask, process[0]))
