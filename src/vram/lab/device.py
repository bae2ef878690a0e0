"""One GPU as the driver's management library shows it, read through the host under a deadline."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from vram.errors import DriverMissing, UsageError, VramError
from vram.host.ports import Host
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import Observation

READ_S = 5.0


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


def _complaint(observed: tuple[Observation, ...] | list[Observation]) -> str:
    message = next((each.message for each in observed if each.status != "ok" and each.message), None)
    return f": {message}" if message else ""
