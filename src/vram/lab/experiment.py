"""One attempt at one experiment: its workers, its readings of the device, its deadline, and its end.

Whatever happens in it, closing the experiment leaves no process behind.
"""

from __future__ import annotations

import time
from types import TracebackType

from vram.host.ports import Host
from vram.lab.claim import NEAR, CannotTell, Takes
from vram.lab.device import DeviceReading, LabDevice
from vram.lab.worker import MemoryBudget, WorkerClient, WorkerPool
from vram.model.lab import StageReading
from vram.units import size

SETTLE_S = 3.0
PAUSE_S = 0.05


class Experiment:
    """What the function of a claim works with; CannotTell where less memory is free than it names."""

    def __init__(
        self, host: Host, device: LabDevice, pool: WorkerPool, takes: Takes, deadline_s: float
    ) -> None:
        self._host, self._device, self._pool, self._takes = host, device, pool, takes
        self._deadline = time.monotonic() + deadline_s
        self._budget = MemoryBudget(takes.nbytes)
        self._workers: list[WorkerClient] = []
        self.readings: list[StageReading] = []
        self.disturbance: str | None = None
        self.before = self._read()
        free = self.before.memory.free
        if free < takes.total:
            raise CannotTell(f"it needs {size(takes.total)} of free memory, and only {size(free)} is free")

    def __enter__(self) -> Experiment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- for claims ----

    def worker(self, library: str = "", **environment: str) -> WorkerClient:
        """Return a process that sees the experiment's GPU as its first and only one.

        With *library* it has imported that; settings of its *environment* are for it alone.
        """
        if environment:
            worker = WorkerClient({**self._pool.environment, **environment})
        else:
            worker = self._pool.take(library)
        worker.left_s, worker.budget = self.left_s, self._budget
        self._workers.append(worker)
        return worker

    def worker_with_context(self) -> tuple[WorkerClient, DeviceReading]:
        """Return a worker that has made a context, and the device as it was read then."""
        worker = self.worker()
        worker.call("context")
        return worker, self.read_device("context")

    def holder(self, nbytes: int) -> tuple[WorkerClient, int]:
        """Return a worker with a context and *nbytes* that the device showed, and all that it holds."""
        worker, empty = self.worker_with_context()
        worker.call("alloc", nbytes)
        held = self.read_device("allocated")
        self.must_show(held, nbytes, since=empty)
        return worker, self.grown(held)

    def read_device(self, stage: str) -> DeviceReading:
        """Read the device, and keep what changed since the experiment began."""
        reading = self._read()
        ours = {process.pid for worker in self._workers for process in (worker, *worker.children)}
        listed = sum(nbytes for pid, nbytes in reading.charges.items() if pid in ours)
        self.readings.append(StageReading(stage, self.grown(reading), listed))
        self._note_others(reading, ours)
        if self.grown(reading) > self._takes.total + NEAR and self.disturbance is None:
            raise CannotTell(f"it used {size(self.grown(reading))}, more than its page says: stopped")
        return reading

    def grown(self, reading: DeviceReading) -> int:
        """Bytes in use beyond those at the experiment's start."""
        return reading.used - self.before.used

    def must_show(self, reading: DeviceReading, nbytes: int, since: DeviceReading | None = None) -> None:
        """Go on only if the device shows *nbytes* more: else nothing that follows means anything."""
        grown = reading.used - (since or self.before).used
        if grown < nbytes - NEAR:
            raise CannotTell(f"the device showed {size(grown)} of the {size(nbytes)} that were allocated")

    def state_of(self, pid: int) -> str | None:
        """What the kernel says of a process in one letter: T is stopped, Z is dead and not reaped."""
        found = self._host.proc.facts(pid)
        return found[1].state if found else None

    @property
    def on_virtual_gpu(self) -> bool:
        return self._device.facts.virtual

    @property
    def on_wsl(self) -> bool:
        return self._host.facts().wsl

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    # ---- for the session ----

    def close(self) -> None:
        """End every process of the experiment, and wait until each is gone."""
        for worker in reversed(self._workers):
            worker.close()
        self._workers.clear()

    def settled(self) -> bool:
        """Whether the device comes back to where it was, once all processes are gone."""
        until = time.monotonic() + SETTLE_S
        while abs(self.grown(self._read())) > NEAR:
            if time.monotonic() >= until:
                return False
            self._host.clock.sleep(PAUSE_S)
        return True

    def _read(self) -> DeviceReading:
        return self._device.read(self._host)

    def _note_others(self, reading: DeviceReading, ours: set[int]) -> None:
        for pid in (reading.charges.keys() | self.before.charges.keys()) - ours:
            moved = reading.charges.get(pid, 0) - self.before.charges.get(pid, 0)
            if abs(moved) > NEAR:
                self.disturbance = (
                    f"memory of pid {pid}, which is not part of the experiment, changed by"
                    f" {size(abs(moved))} meanwhile"
                )
