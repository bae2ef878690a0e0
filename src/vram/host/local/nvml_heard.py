"""What the reader of NVML said, as the model has it.

The reader is this very program, so nothing is checked again: ``msgspec.convert`` would, and
for that read every annotation of the model first, 2.4 ms of each command.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts, MigFacts
from vram.model.observation import Observation
from vram.model.process import ProcessRef

_FACTS: dict[str, type[Struct]] = {
    "driver": DriverFacts,
    "gpu": GpuFacts,
    "memory": MemoryFacts,
    "mig": MigFacts,
    "charge": ChargeFacts,
}


def observation(fields: dict[str, Any]) -> Observation:
    """The statement with these *fields*; they are not used again."""
    if process := fields.get("process"):
        fields["process"] = ProcessRef(**process)
    if facts := fields.get("facts"):
        fields["facts"] = _facts(facts)
    return Observation(**fields)


def _facts(fields: dict[str, Any]) -> Any:
    kind = _FACTS[fields.pop("type")]
    if kind is MigFacts and fields["memory"]:
        fields["memory"] = _facts(fields["memory"])
    return kind(**fields)
