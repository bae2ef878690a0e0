"""Readings of a machine where processes come and go all the time, handed to the view without a host."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.engine import diagnose
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.live_reader import LiveReading
from vram.top.app import TopApp
from vram.units import GIB

PROCESSES = 12
KEYS = ("down", "up", "t", "greater_than_sign")


class Churn:
    """At every moment one of the processes has been replaced by another."""

    waiting_s = 0.0

    def __init__(self) -> None:
        self._random = random.Random(12)
        self._next = 1000
        self._pids: list[int] = []
        self._on_reading: Callable[[LiveReading], None] = lambda reading: None

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        self._on_reading = on_reading

    def ask(self, whole: bool = False) -> bool:
        return False

    def close(self) -> None:
        pass

    def read(self) -> None:
        while len(self._pids) < PROCESSES:
            self._pids.append(self._next)
            self._next += 1
        del self._pids[self._random.randrange(PROCESSES)]
        world = World()
        sizes = {pid: self._random.randrange(1, 4) * GIB for pid in self._pids}
        used = sum(sizes.values()) + len(sizes) * (CONTEXT + OVERHEAD)
        world.gpu(0, used=used).gpu(1)
        for pid, nbytes in sizes.items():
            world.cuda(pid, nbytes + CONTEXT)
        ledger = build_ledger(world.survey())
        self._on_reading(
            LiveReading(taken_at="2026-01-01T00:00:00Z", took_s=0.0, ledger=ledger, findings=diagnose(ledger))
        )


async def refreshed(count: int, weigh: Callable[[], int]) -> tuple[int, int]:
    """Refresh a view *count* times, with keys in between; what it weighed after a third, and at the end."""
    weights = []
    source = Churn()
    app = TopApp(source, LocalHost, every_s=3600.0)
    async with app.run_test(size=(120, 40)) as pilot:
        for at in range(count):
            source.read()
            if at % 10 == 0:
                await pilot.press(KEYS[at // 10 % len(KEYS)])
            if at in (count // 3, count - 1):
                await pilot.pause()
                weights.append(weigh())
        assert app.refreshes == count
        assert len(app.history.keys()) == PROCESSES - 1 + 2
    first, last = weights
    return first, last
