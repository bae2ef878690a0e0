"""Forecasts in the view: made of its own readings. Which line grows is asked of the recorder, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from vram.forecast.forecaster import AFTER_S, Forecaster
from vram.model.forecast import Forecast, GrowingHold
from vram.model.hold import Identity
from vram.model.ledger import Ledger
from vram.model.moment import Moment
from vram.trace.growing import growing_line

ASK_AGAIN_S = 60.0
_LONGEST_PAUSE_S = 55.0
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
        self._longest_pause_s = max(_LONGEST_PAUSE_S, 3 * every_s)
        self._ask = ask
        self._lines: dict[Identity, tuple[float, str | None]] = {}
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
        self._ask_for_lines(now)

    def age_s(self, now: float) -> float:
        """How long ago they were made."""
        return now - self._read_at

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """With the lines that are known."""
        return tuple(
            replace(each, growing=tuple(map(self._with_line, each.growing)))
            for each in self._forecaster.forecasts
        )

    def _with_line(self, growing: GrowingHold) -> GrowingHold:
        known = self._lines.get(_identity(growing))
        return replace(growing, line=known[1]) if known is not None else growing

    def _ask_for_lines(self, now: float) -> None:
        """Ask for the fastest of each GPU, one at a time and now and then: a long recording takes a while."""
        fastest = {_identity(each.growing[0]) for each in self._forecaster.forecasts}
        self._lines = {each: line for each, line in self._lines.items() if each in fastest}
        due = [
            each
            for each in fastest
            if each[0] and now - self._lines.get(each, (-ASK_AGAIN_S, None))[0] >= ASK_AGAIN_S
        ]
        if due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.ensure_future(self._ask_for(due[0], now))

    async def _ask_for(self, process: Identity, now: float) -> None:
        self._lines[process] = (now, await asyncio.to_thread(self._ask, process[0]))


def _identity(growing: GrowingHold) -> Identity:
    return growing.pid or 0, growing.started_at
