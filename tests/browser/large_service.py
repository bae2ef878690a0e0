"""A service on a machine of 16 GPUs and 2,000 processes that does not exist: only its readings are made up.

    python -m tests.browser.large_service FOLDER

Each reading differs from the one before: every third process has grown. Its port is a free one.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import until
from vram.diagnosis.engine import diagnose
from vram.live_reader import LiveReading
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.observation import HostFacts
from vram.serve import config as configuration
from vram.serve.config import HttpConfig, ServeConfig, SocketConfig
from vram.serve.service import Service
from vram.units import GIB, MIB

GPUS, PROCESSES_EACH, INTERVAL = 16, 125, "0.5s"
TOTAL = 141 * GIB


class MadeUpSource:
    """Hands over a ledger that differs from the last one, whenever it is asked."""

    launches = 1
    waiting_s = 0.0

    def __init__(self) -> None:
        self._round = 0
        self._on_reading: Callable[[LiveReading], None] = lambda reading: None

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        self._on_reading = on_reading

    def ask(self, whole: bool = False) -> bool:
        asyncio.get_running_loop().call_soon(self._answer)
        return True

    def _answer(self) -> None:
        self._round += 1
        ledger = large_ledger(self._round)
        reading = LiveReading(taken_at=ledger.taken_at, took_s=0.0, ledger=ledger, findings=diagnose(ledger))
        self._on_reading(reading)

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def large_ledger(number: int) -> Ledger:
    """16 GPUs, 125 processes on each, two of them with memory of a dead one."""
    return Ledger(
        taken_at="2026-01-01T12:00:00Z",
        host=HostFacts(name="large", kernel="6.18.0", user="root", uid=0),
        gpus=tuple(_gpu(index, number) for index in range(GPUS)),
    )


def _gpu(index: int, number: int) -> GpuLedger:
    entries = [_entry(index, place, number) for place in range(PROCESSES_EACH)]
    used = sum(entry.nbytes or 0 for entry in entries)
    entries.append(Entry(kind="free", nbytes=TOTAL - used))
    return GpuLedger(
        index=index, uuid=f"GPU-{index}", name="NVIDIA H200", total_bytes=TOTAL, entries=tuple(entries)
    )


def _entry(index: int, place: int, number: int) -> Entry:
    pid = 1000 + index * PROCESSES_EACH + place
    grown = number % 64 if place % 3 == 0 else 0
    holder = Holder(
        pid=pid,
        started_at=100 * pid,
        user=f"user{pid % 7}",
        command=f"/usr/bin/python3 train.py --rank {place} --model resnet{pid % 9}",
        alive=True,
        age_s=float(pid),
        state="S",
    )
    nbytes = (200 + pid * 7919 % 700 + grown) * MIB
    if place < 2:
        return Entry(kind="orphaned", nbytes=nbytes, holder=holder, charged_pid=100_000 + pid)
    return Entry(kind="process", nbytes=nbytes, holder=holder)


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its address, while it runs in a process of its own."""
    path = folder / "log"
    with open(path, "wb") as log:
        service = subprocess.Popen([sys.executable, "-m", __name__, folder], stderr=log)
    try:

        def address() -> list[str]:
            found = re.findall(r"listening on (http://\S+)", path.read_text())
            assert found or service.poll() is None, path.read_text()
            return found

        yield until(address, path.read_text)[0]
    finally:
        service.kill()
        service.wait()


def main(folder: str) -> None:
    config = ServeConfig(
        interval=INTERVAL, http=HttpConfig(listen="127.0.0.1:0"), socket=SocketConfig(enabled=False)
    )
    places = configuration.places(config, state=str(Path(folder) / "state"))
    asyncio.run(Service(config, places, source=MadeUpSource()).run())


if __name__ == "__main__":
    main(sys.argv[1])
