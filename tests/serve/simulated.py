"""Time and readings without waiting: a clock that a test turns, and a source that answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vram.live_reader import LiveReading
from vram.model.moment import Moment


class SimulatedClock:
    """Sleeping moves it on. ``jump`` moves the wall clock alone."""

    def __init__(self, wall: float = 1_800_000_000.0, boot: float = 1000.0) -> None:
        self._wall, self._boot = wall, boot

    def now(self) -> Moment:
        return Moment(self._wall, self._boot, "simulated")

    async def sleep(self, seconds: float) -> None:
        self._wall += seconds
        self._boot += seconds
        await asyncio.sleep(0)

    def jump(self, seconds: float) -> None:
        self._wall += seconds


class SimulatedSource:
    """Answers each question with what *read* returns."""

    launches = 1
    waiting_s = 0.0

    def __init__(self, read: Callable[[], LiveReading]) -> None:
        self._read = read
        self._on_reading: Callable[[LiveReading], None] | None = None

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        self._on_reading = on_reading

    def ask(self, whole: bool = False) -> bool:
        if self._on_reading is not None:
            self._on_reading(self._read())
        return True

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass
