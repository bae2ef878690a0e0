"""The parts of the service: each does one job with every reading, and none can stop another."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from vram.errors import VramError
from vram.python_310 import timeout

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    from vram.serve.config import ServeConfig
    from vram.serve.state import Reading
    from vram.serve.systemd import ServiceLog

Health = Literal["ok", "degraded", "failed"]
_WORST: tuple[Health, ...] = ("ok", "degraded", "failed")


class PartHealth(Struct, frozen=True):
    """How a part is. "degraded": it works, with a loss that *message* names."""

    status: Health = "ok"
    message: str = ""


def worst(states: Iterable[Health]) -> Health:
    return max(states, key=_WORST.index, default="ok")


Samples = float | Iterable[tuple[str | tuple[str, ...], float]]
"""One value; or values by the label's, or by those of several labels."""


def gauge(name: str, what: str, samples: Samples, *labels: str) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _fill(GaugeMetricFamily(name, what, labels=labels), samples)


def counter(name: str, what: str, samples: Samples, *labels: str) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _fill(CounterMetricFamily(name, what, labels=labels), samples)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for values, number in [((), samples)] if isinstance(samples, int | float) else samples:
        family.add_metric([values] if isinstance(values, str) else values, float(number))
    return family


class ServicePart(Protocol):
    """One job. Subclass it: what a part does not need is inherited and does nothing.

    ``start`` may raise VramError, which ends the service with that sentence. What the others raise is logged
    once, counted and shown in the health, and the service goes on.
    """

    name: str

    async def start(self) -> None:
        """Begin; before the first reading."""

    async def on_reading(self, reading: Reading) -> None:
        """Take a reading. ``reading.ledger`` is the object of the last time where nothing has changed."""

    async def reload(self, config: ServeConfig) -> None:
        """Take another configuration, which is valid."""

    async def close(self) -> None:
        """End; nothing comes after it."""

    def health(self) -> PartHealth:
        return PartHealth()

    def metrics(self) -> Iterable[Metric]:
        """Its own metrics, beside those that every part has."""
        return ()


class GuardedPart:
    """A part that cannot do harm: its exceptions end here."""

    def __init__(self, part: ServicePart, log: ServiceLog) -> None:
        self.part = part
        self.errors = 0
        self._log = log
        self._error = ""

    @property
    def name(self) -> str:
        return self.part.name

    async def call(self, job: Awaitable[None], most_s: float) -> None:
        """Await one of its methods for at most *most_s*. An error that comes again is logged once."""
        try:
            async with timeout(most_s):
                await job
        except Exception as error:
            self.errors += 1
            said = _sentence(error, most_s)
            if said != self._error:
                self._log.error(f"{self.name}: {said}")
            self._error = said
        else:
            if self._error:
                self._log.info(f"{self.name}: works again")
            self._error = ""

    def health(self) -> PartHealth:
        if self._error:
            return PartHealth("failed", self._error)
        try:
            return self.part.health()
        except Exception as error:
            return PartHealth("failed", f"{type(error).__name__}: {error}")


def _sentence(error: Exception, most_s: float) -> str:
    if isinstance(error, VramError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"took longer than {most_s:g} s"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"
