"""Weeks of a service within minutes: the clock is turned, everything else is the service itself.

    python -m tests.serve.soak --days 30 --interval 30

A busy machine: processes with pids that never come again, ghosts, a GPU that is lost at times, a reading
process that fails, a wall clock that jumps. Prints a line of JSON for each day: memory, descriptors, bytes on
the disk, and the sizes of the answers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.ledger.world import CONTEXT, World
from tests.serve.simulated import SimulatedClock, SimulatedSource
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.live_reader import LiveReading
from vram.model.ledger import Ledger
from vram.model.moment import rfc3339
from vram.serve.config import HttpConfig, Places, ServeConfig
from vram.serve.service import Service
from vram.serve.web.http import HttpRequest, HttpResponse
from vram.serve.web.routes import find
from vram.units import GIB

GPUS = 4
DAY_S = 86400.0
CHANGES_EVERY = 4
"""Readings with one and the same ledger."""
PATHS = ("/metrics", "/healthz", "/api/v1/why", "/api/v1/ps", "/api/v1/changes", "/api/v1/ghosts")


class BusyMachine:
    """Readings of a machine on which jobs come and go, and some leave a ghost."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._chance = random.Random(15)
        self._pid = 1000
        self._jobs: list[tuple[int, int, int]] = []  # pid, GPU, bytes
        self._ghosts: list[tuple[int, int, int]] = []
        self.readings = 0

    def read(self) -> LiveReading:
        self.readings += 1
        taken_at = rfc3339(self._clock.now().wall)
        if self.readings % 997 == 0:
            self._clock.jump(self._chance.choice((-7200.0, 3600.0, -5.0, 86400.0)))
        if self.readings % 501 == 0:
            return LiveReading(taken_at=taken_at, took_s=0.0, error="the reading process has ended")
        if self.readings % CHANGES_EVERY:
            return LiveReading(taken_at=taken_at, took_s=0.0)
        ledger = replace(self._ledger(), taken_at=taken_at)
        return LiveReading(taken_at=taken_at, took_s=0.0, ledger=ledger, findings=diagnose(ledger))

    def _ledger(self) -> Ledger:
        self._move()
        world = World()
        held = [0] * GPUS
        for pid, gpu, nbytes in self._jobs:
            world.cuda(pid, nbytes + CONTEXT, gpu=gpu)
            held[gpu] += nbytes + CONTEXT
        for pid, gpu, nbytes in self._ghosts:
            world.charge(pid, nbytes + CONTEXT, gpu=gpu).process(pid + 1)
            world.files(pid + 1, minors=(gpu,), family=pid)
            held[gpu] += nbytes + CONTEXT
        for gpu in range(GPUS):
            world.gpu(gpu, used=held[gpu])
        ledger = build_ledger(world.survey())
        if self.readings % 300 < 8:  # a GPU that does not answer for a while
            lost = replace(ledger.gpus[0], status="lost", total_bytes=None, entries=())
            ledger = replace(ledger, gpus=(lost, *ledger.gpus[1:]))
        return ledger

    def _move(self) -> None:
        if len(self._jobs) < 3 * GPUS:
            self._pid += 2
            self._jobs.append((self._pid, self._chance.randrange(GPUS), self._chance.randrange(8 * GIB)))
        elif self._chance.random() < 0.5:
            ended = self._jobs.pop(self._chance.randrange(len(self._jobs)))
            if self._chance.random() < 0.2:
                self._ghosts.append(ended)
        if len(self._ghosts) > GPUS:
            del self._ghosts[0]


class Soak:
    """One service with simulated time; ``days`` are the figures of each day."""

    def __init__(self, folder: Path, days: int, interval_s: float) -> None:
        self.folder = folder
        self.wanted = days
        self.days: list[dict[str, Any]] = []
        self._clock = SimulatedClock()
        self._machine = BusyMachine(self._clock)
        config = ServeConfig(interval=f"{interval_s:g}s", http=HttpConfig(listen="127.0.0.1:0"))
        config = replace(config, history=replace(config.history, keep="7d", most="64MiB"))
        places = Places(str(folder / "state"), str(folder / "vram.sock"))
        source = SimulatedSource(self._read)
        self._service = Service(config, places, source=source, clock=self._clock, load=lambda: config)
        self._began = time.monotonic()

    def _read(self) -> LiveReading:
        reading = self._machine.read()
        if self._clock.now().since(self._service.state.started) >= DAY_S * (len(self.days) + 1):
            asyncio.get_running_loop().call_soon(self._note)
        return reading

    def _note(self) -> None:
        """At the end of a day: what has grown?"""
        gc.collect()
        state = self._service.state
        sizes = {path: len(self._ask(path)) for path in PATHS}
        self.days.append(
            {
                "day": len(self.days) + 1,
                "readings": sum(state.readings.values()),
                "took_s": round(time.monotonic() - self._began, 1),
                "rss_bytes": _rss_bytes(),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "disk_bytes": sum(each.stat().st_size for each in self.folder.rglob("*") if each.is_file()),
                "objects": len(gc.get_objects()),
                "ghosts": len(state.ghosts),
                "changes": len(state.changes),
                "health": self._service.health()[0],
                "answers": sizes,
            }
        )
        print(json.dumps(self.days[-1]), flush=True)
        if len(self.days) >= self.wanted:
            self._service.stop()

    def _ask(self, path: str) -> bytes:
        handler = find(path)
        assert handler is not None
        answer = handler(self._service, HttpRequest(method="GET", path=path, query={}, headers={}))
        assert isinstance(answer, HttpResponse)
        assert answer.status == 200, answer.body
        return answer.body

    def run(self) -> None:
        asyncio.run(self._service.run())


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--interval", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Soak(Path(folder), arguments.days, arguments.interval).run()


if __name__ == "__main__":
    main()
