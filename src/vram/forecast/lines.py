"""Which lines of programs grow, as far as that was asked: whom to ask next, forecasts with the answers."""

from __future__ import annotations

from msgspec.structs import replace

from vram.model.forecast import Forecast, GrowingHold
from vram.model.hold import Identity

AGAIN_S = 60.0
NONE_AGAIN_S = 300.0
"""Where nothing was recorded."""


class GrowingLines:
    """The answers about the fastest of each GPU; those of others are forgotten."""

    def __init__(self) -> None:
        self._known: dict[Identity, tuple[float, str | None]] = {}

    def due(self, forecasts: tuple[Forecast, ...], now_s: float) -> Identity | None:
        """Whom to ask now; None where all that is known is new."""
        fastest = dict.fromkeys(_identity(each.growing[0]) for each in forecasts)
        self._known = {each: known for each, known in self._known.items() if each in fastest}
        return next((each for each in fastest if each[0] and self._is_old(each, now_s)), None)

    def note(self, process: Identity, now_s: float, line: str | None) -> None:
        self._known[process] = (now_s, line)

    def added_to(self, forecasts: tuple[Forecast, ...]) -> tuple[Forecast, ...]:
        if not self._known:
            return forecasts
        return tuple(replace(each, growing=tuple(map(self._with_line, each.growing))) for each in forecasts)

    def _is_old(self, process: Identity, now_s: float) -> bool:
        if process not in self._known:
            return True
        asked_s, line = self._known[process]
        return now_s - asked_s >= (AGAIN_S if line is not None else NONE_AGAIN_S)

    def _with_line(self, growing: GrowingHold) -> GrowingHold:
        _, line = self._known.get(_identity(growing), (0.0, None))
        return growing if line is None else replace(growing, line=line)


def _identity(growing: GrowingHold) -> Identity:
    return growing.pid or 0, growing.started_at
