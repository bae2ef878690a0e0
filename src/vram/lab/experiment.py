"""Carries out experiments on one GPU: workers, readings, deadlines, and a clean end without disturbance.

Whatever happens in an experiment, closing it leaves no process behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from vram.errors import DriverMissing, UsageError, VramError
from vram.host.ports import Host
from vram.lab.claim import NEAR, CannotTell, Conclusion, DefinedClaim, Takes
from vram.lab.worker import MemoryBudget, WorkerClient, WorkerPool
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.lab import Result, StageReading, Verdict
from vram.model.observation import Observation
from vram.units import size

READ_S = 5.0
SETTLE_S = 3.0
PAUSE_S = 0.05
ATTEMPTS = 2
AHEAD = 3
"""Workers of so many claims start early: importing PyTorch takes as long as three or four experiments."""


class DeviceReading(Struct, frozen=True):
    """One reading of a GPU. ``charges`` has what the driver's lists say for each pid, ``mps_clients`` those
    that reach the GPU through an MPS server."""

    memory: MemoryFacts
    charges: Mapping[int, int]
    mps_clients: frozenset[int] = frozenset()

    @property
    def used(self) -> int:
        return self.memory.used


class LabDevice(Struct, frozen=True):
    """The GPU that experiments run on, and the driver that answers for it."""

    index: int
    facts: GpuFacts
    driver: DriverFacts

    def read(self, host: Host) -> DeviceReading:
        """Read it now; VramError where the driver does not answer."""
        observed = [each for each in host.nvml.read(READ_S) if each.gpu == self.index]
        memory = next((each.facts for each in observed if isinstance(each.facts, MemoryFacts)), None)
        if memory is None:
            raise VramError(f"GPU {self.index} does not report its memory{_complaint(observed)}")
        listed = [
            (each.process.pid, each.nbytes or 0, each.facts.lists)
            for each in observed
            if isinstance(each.facts, ChargeFacts) and each.process is not None
        ]
        charges = {pid: nbytes for pid, nbytes, _ in listed}
        return DeviceReading(memory, charges, frozenset(pid for pid, _, lists in listed if "mps" in lists))


def find_device(host: Host, index: int) -> LabDevice:
    """The GPU with that number; a typed error where there is none to experiment on."""
    observed = tuple(host.nvml.read(READ_S))
    driver = next((each.facts for each in observed if isinstance(each.facts, DriverFacts)), None)
    found = {each.gpu: each.facts for each in observed if isinstance(each.facts, GpuFacts)}
    if not found:
        hint = "no GPU here? `vram virtual -- vram lab run` runs it on a virtual one"
        raise DriverMissing(f"no GPU to experiment on{_complaint(observed)}", hint=hint)
    if index not in found:
        known = ", ".join(f"{number} ({facts.name})" for number, facts in found.items())
        raise UsageError(f"there is no GPU {index}", hint=f"these exist: {known}")
    facts = found[index]
    if facts.mig_enabled:
        hint = "its instances share one process list; turn MIG off, or choose another GPU with --gpu"
        raise VramError(f"GPU {index} is divided by MIG: the lab needs a whole one", hint=hint)
    return LabDevice(index, facts, driver or DriverFacts())


def _complaint(observed: Iterable[Observation]) -> str:
    message = next((each.message for each in observed if each.status != "ok" and each.message), None)
    return f": {message}" if message else ""


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

    def __exit__(self, *_: object) -> None:
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

    @property
    def nbytes(self) -> int:
        """What its page says that it allocates."""
        return self._takes.nbytes

    def cuda_worker(self) -> WorkerClient:
        """Return a worker that has made a context."""
        worker = self.worker()
        worker.call("context")
        return worker

    def worker_with_context(self) -> tuple[WorkerClient, DeviceReading]:
        """Return a worker that has made a context, and the device as it was read then."""
        return self.cuda_worker(), self.read_device("context")

    def allocator(
        self, call: str = "alloc", stage: str = "allocated"
    ) -> tuple[WorkerClient, DeviceReading, Any]:
        """Return a worker that allocated all by *call*, the device with its bare context, and the pointer.

        The device showed the memory at *stage*.
        """
        worker, empty = self.worker_with_context()
        pointer = worker.call(call, self.nbytes)
        self.must_show(stage, since=empty)
        return worker, empty, pointer

    def holder(self) -> tuple[WorkerClient, int]:
        """Return a worker with a context and memory that the device showed, and all that it holds."""
        worker, empty = self.worker_with_context()
        worker.call("alloc", self.nbytes)
        return worker, self.grown(self.must_show("allocated", since=empty))

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

    def used(self, stage: str, since: DeviceReading | None = None) -> int:
        """Read the device: bytes in use beyond those of *since*, or of the experiment's start."""
        return self.read_device(stage).used - (since or self.before).used

    def must_show(
        self, stage: str, nbytes: int | None = None, since: DeviceReading | None = None
    ) -> DeviceReading:
        """Read the device, and go on only if it shows *nbytes* more, or all that the experiment allocates.

        Otherwise nothing that follows would mean anything.
        """
        reading = self.read_device(stage)
        grown, expected = reading.used - (since or self.before).used, nbytes or self.nbytes
        if grown < expected - NEAR:
            raise CannotTell(f"the device showed {size(grown)} of the {size(expected)} that were allocated")
        return reading

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


class LabSession:
    """One GPU, one experiment after the other. Closing it leaves no process behind.

    Without *deadline_s* each experiment has its own.
    """

    def __init__(self, host: Host, device: LabDevice, deadline_s: float | None = None) -> None:
        self._host, self._device, self._deadline_s = host, device, deadline_s
        self._pool = WorkerPool(device.facts.uuid)
        self._prestarted: set[str] = set()

    def __enter__(self) -> LabSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def run(self, claim: DefinedClaim, upcoming: Sequence[DefinedClaim] = ()) -> Result:
        """Test one claim. Whatever goes wrong is a reason why it cannot be told here.

        The first workers that *upcoming* will need are started meanwhile.
        """
        began = time.monotonic()
        for each in upcoming[:AHEAD]:
            if each.name not in self._prestarted:
                self._prestarted.add(each.name)
                self._pool.prestart(each.library)
        for _ in range(ATTEMPTS):
            conclusion, readings, again = self._attempt(claim)
            if not again:
                break
        page = claim.describe()
        return Result(
            experiment=page.name,
            topic=page.topic,
            claim=page.claim,
            source=page.source,
            verdict=_verdict(conclusion.holds),
            because=conclusion.because,
            figures=conclusion.figures,
            readings=readings,
            took_s=round(time.monotonic() - began, 2),
        )

    def _attempt(self, claim: DefinedClaim) -> tuple[Conclusion, tuple[StageReading, ...], bool]:
        """One attempt: its conclusion, its readings, and whether another one may do better."""
        allowed_s = claim.deadline_s if self._deadline_s is None else self._deadline_s
        try:
            experiment = Experiment(self._host, self._device, self._pool, claim.takes, allowed_s)
        except (CannotTell, VramError) as error:
            return Conclusion(None, str(error)), (), False
        with experiment:
            try:
                conclusion = claim.measure(experiment)
            except (CannotTell, VramError) as error:
                conclusion = Conclusion(None, str(error))
        disturbance = experiment.disturbance or _memory_left(experiment)
        if disturbance:
            conclusion = Conclusion(None, disturbance, conclusion.figures)
        return conclusion, tuple(experiment.readings), disturbance is not None


def _memory_left(experiment: Experiment) -> str | None:
    """With every process gone the device must be where it was: else others moved, or we misread."""
    try:
        if experiment.settled():
            return None
    except VramError as error:
        return str(error)
    return "device memory did not return to its first value: other memory changed meanwhile"


def _verdict(holds: bool | None) -> Verdict:
    return "cannot tell" if holds is None else "true here" if holds else "false here"
