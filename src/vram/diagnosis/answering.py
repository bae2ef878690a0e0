"""Who answers: the driver, each GPU, other sources; and what changes about a GPU as a whole.

A GPU or a source that does not answer proves nothing about what it would have shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.tracker import Item, Key
from vram.ledger.processes import is_silent
from vram.model.change import Change, Event
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.model.observation import ProbeRun, Status

# In how many readings after an end a GPU's free memory may still rise because of it.
_TEARDOWN_READINGS = 5
_FAILED = ("failed", "timeout")
# Without these a living process may look as if it were none: it is told from a newcomer by its open files.
_OF_PROCESSES = frozenset(("processes", "files", "files.late"))


class KnownGpu(Struct, eq=False):
    """A GPU as it was read last. ``normal`` is the status it had at first."""

    ledger: GpuLedger
    normal: Status
    free_bytes: int | None = None
    condition: str = "ok"
    owed_bytes: int = 0
    """What ended processes and ghosts had, and what has not become free since."""
    owed_readings: int = 0


class Answering:
    """Compares each ledger's GPUs and sources with those of the one before."""

    def __init__(self, min_bytes: int) -> None:
        self.gpus: dict[Key, KnownGpu] = {}
        self._min_bytes = min_bytes
        self._failed: dict[str, ProbeRun] = {}
        self._normal_failures: set[str] = set()
        self._unproved: set[str] = set()
        self._comparable: dict[tuple[tuple[Key, ...], bool], bool] = {}
        self._driver_answers = True
        self._is_first = True
        self._at = ""

    def compare(self, ledger: Ledger) -> tuple[list[Change], dict[int, Key]]:
        """What changed as a whole, and the name of each GPU of *ledger* by its place there."""
        self._at = ledger.taken_at
        self._comparable = {}
        keys = self._keys(ledger)
        changes = [*self._driver(ledger), *self._probes(ledger), *self._gpu_changes(ledger, keys)]
        self._is_first = False
        return changes, keys

    def is_comparable(self, gpus: tuple[Key, ...], topic: str) -> bool:
        """Whether this reading can prove that something of *topic* on *gpus* is there, or is not."""
        asked = (gpus, topic == "process")
        if asked not in self._comparable:
            needed = self._unproved & _OF_PROCESSES if topic == "process" else self._unproved
            answers = all(key in self.gpus and _answers(self.gpus[key]) for key in gpus)
            self._comparable[asked] = self._driver_answers and answers and not needed
        return self._comparable[asked]

    def is_removed(self, gpus: tuple[Key, ...]) -> bool:
        """Whether one of *gpus* is not there any more."""
        return not self.gpus.keys() >= set(gpus)

    def _driver(self, ledger: Ledger) -> Iterator[Change]:
        run = _probe(ledger, "nvml")
        answers = bool(ledger.gpus) or run is None or run.status in ("ok", "denied", "lost")
        if answers != self._driver_answers and run is not None:
            event: Event = "driver-back" if answers else "driver-gone"
            yield self._change(event, code=run.code, status=run.status, message=run.message)
        self._driver_answers = answers

    def _probes(self, ledger: Ledger) -> Iterator[Change]:
        failed = {run.name: run for run in ledger.probes if run.name != "nvml" and run.status in _FAILED}
        for name, run in failed.items():
            if name not in self._failed:
                yield self._of_probe("probe-failed", run)
        for name, run in self._failed.items():
            if name not in failed:
                yield self._of_probe("probe-recovered", run)
        self._failed = failed
        self._normal_failures = {name for name in failed if self._is_first or name in self._normal_failures}
        # One process with thousands of open files is always read in part, and alike.
        self._unproved = {
            name
            for name, run in failed.items()
            if name not in self._normal_failures and run.code != "too-many-files"
        }

    def _of_probe(self, event: Event, run: ProbeRun) -> Change:
        return self._change(event, probe=run.name, code=run.code, status=run.status, message=run.message)

    def _keys(self, ledger: Ledger) -> dict[int, Key]:
        """A name for each GPU of *ledger*, by its place there, that stays when GPUs are numbered anew."""
        numbers = {(gpu.ledger.index, gpu.ledger.mig): key for key, gpu in self.gpus.items()}
        keys: dict[int, Key] = {}
        for at, gpu in enumerate(ledger.gpus):
            place = (gpu.index, gpu.mig)
            keys[at] = (gpu.uuid, gpu.mig) if gpu.uuid is not None else numbers.get(place, place)
        return keys

    def _gpu_changes(self, ledger: Ledger, keys: dict[int, Key]) -> Iterator[Change]:
        there = {keys[at]: gpu for at, gpu in enumerate(ledger.gpus)}
        if self._all_listed(ledger):
            for key in self.gpus.keys() - there.keys():
                yield self._of_gpu("gpu-removed", self.gpus.pop(key).ledger)
        for key, gpu in there.items():
            known = self.gpus.get(key)
            if known is None:
                known = self.gpus[key] = KnownGpu(gpu, gpu.status, free_bytes(gpu))
                if not self._is_first:
                    yield self._of_gpu("gpu-added", gpu)
            condition = _condition(gpu)
            if condition != known.condition:
                event: Event = "gpu-back"
                if condition != "ok":
                    event = "gpu-lost" if condition == "lost" else "gpu-unreadable"
                yield self._of_gpu(event, gpu)
                known.condition = condition
            # A GPU that does not answer has the name and the UUID that it had.
            is_nameless = gpu.uuid is None and known.ledger.uuid is not None
            named = replace(gpu, uuid=known.ledger.uuid, name=known.ledger.name) if is_nameless else gpu
            known.ledger = named

    def _all_listed(self, ledger: Ledger) -> bool:
        """Whether a GPU that is not in *ledger* is not there: a driver that hangs may leave some out."""
        runs = (_probe(ledger, "nvml"), _probe(ledger, "drm"))
        return self._driver_answers and all(run is None or run.status not in _FAILED for run in runs)

    def _of_gpu(self, event: Event, gpu: GpuLedger) -> Change:
        return self._change(
            event,
            gpus=(gpu.index,),
            mig=gpu.mig,
            total_bytes=gpu.total_bytes,
            free_bytes=free_bytes(gpu),
            status=gpu.status,
            code=gpu.code,
            message=gpu.message if gpu.status != "ok" else gpu.name,
        )

    # ---- memory that comes back ----

    def owe(self, item: Item, sign: int) -> None:
        for key in item.gpus:
            gpu = self.gpus.get(key)
            if gpu is not None:
                gpu.owed_bytes = max(0, gpu.owed_bytes + sign * (item.nbytes or 0))
                gpu.owed_readings = _TEARDOWN_READINGS

    def freed(self, keys: dict[int, Key]) -> Iterator[Change]:
        for key in keys.values():
            gpu = self.gpus[key]
            free = free_bytes(gpu.ledger)
            if free is None or gpu.condition != "ok":
                continue
            rise = 0 if gpu.free_bytes is None else free - gpu.free_bytes
            gpu.free_bytes = free
            if gpu.owed_bytes and rise >= self._min_bytes:
                gpu.owed_bytes = max(0, gpu.owed_bytes - rise)
                yield replace(self._of_gpu("freed", gpu.ledger), nbytes=rise, status=None, message=None)
            gpu.owed_readings -= 1
            if gpu.owed_readings <= 0:
                gpu.owed_bytes = 0

    def _change(self, event: Event, **values: Any) -> Change:
        return Change(at=self._at, event=event, **values)


def _probe(ledger: Ledger, name: str) -> ProbeRun | None:
    return next((run for run in ledger.probes if run.name == name), None)


def free_bytes(gpu: GpuLedger) -> int | None:
    if gpu.total_bytes is None and not gpu.instances:
        return None
    return known_bytes(gpu.of_kind("free"))


def _condition(gpu: GpuLedger) -> str:
    """ok, lost, or unreadable: its memory or its process lists could not be read."""
    if gpu.status == "lost":
        return "lost"
    return "unreadable" if is_silent(gpu) or gpu.status in ("failed", "timeout", "denied") else "ok"


def _answers(gpu: KnownGpu) -> bool:
    """Whether it can be compared: it answers, or answers as little as it always did."""
    is_normal = gpu.ledger.status == gpu.normal and not is_silent(gpu.ledger)
    return gpu.condition == "ok" or (gpu.condition == "unreadable" and is_normal)
