"""An hour does not grow the view: thousands of refreshes while processes come and go."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable

from tests.ledger.world import CONTEXT, OVERHEAD, World
from tests.top.conftest import run
from vram.diagnosis.engine import diagnose
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.top.app import TopApp
from vram.top.reader import LiveReading
from vram.units import GIB, MIB

REFRESHES = 300
"""`make bench` makes as many as an hour has."""
PROCESSES = 12
MOST_GROWTH = 1 * MIB


class Churn:
    """Readings of a machine where at every moment some processes have been replaced by others."""

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


def test_an_hour_does_not_grow_it() -> None:
    sizes: list[int] = []

    async def play() -> None:
        source = Churn()
        app = TopApp(source, LocalHost, every_s=3600.0)
        async with app.run_test(size=(120, 40)) as pilot:
            for at in range(REFRESHES):
                source.read()
                if at % 10 == 0:
                    await pilot.press(("down", "up", "t", "greater_than_sign")[at // 10 % 4])
                if at in (REFRESHES // 3, REFRESHES - 1):
                    await pilot.pause()
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
            assert app.refreshes == REFRESHES
            assert len(app.history.keys()) == PROCESSES - 1 + 2

    tracemalloc.start()
    try:
        run(play)
    finally:
        tracemalloc.stop()
    after_a_third, at_the_end = sizes
    assert at_the_end - after_a_third < MOST_GROWTH
