"""What was seen: one source, one statement. Failure is a statement too."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vram.model.drm import CapacityFacts, ClientFacts, ComputeFacts, SystemMemoryFacts
from vram.model.files import DmabufFacts, ExportFacts, FilesFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts, MigFacts
from vram.model.process import ProcessFacts, ProcessRef
from vram.model.windows import AdapterFacts, WindowsMemoryFacts
from vram.model.wsl import WslFacts

SURVEY_SCHEMA = 1

Status = Literal["ok", "denied", "unsupported", "failed", "timeout", "lost"]

Facts: TypeAlias = (
    DriverFacts
    | GpuFacts
    | MemoryFacts
    | MigFacts
    | ChargeFacts
    | ProcessFacts
    | FilesFacts
    | DmabufFacts
    | ExportFacts
    | UnreadableFacts
    | ClientFacts
    | ComputeFacts
    | CapacityFacts
    | SystemMemoryFacts
    | AdapterFacts
    | WindowsMemoryFacts
)


class Observation(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One statement of one probe. ``nbytes`` None means unknown, never zero."""

    probe: str
    status: Status = "ok"
    gpu: int | None = None
    process: ProcessRef | None = None
    nbytes: int | None = None
    facts: Facts | None = None
    message: str | None = None


class ProbeRun(Struct, frozen=True):
    """How one probe went: its worst status and how long it took."""

    name: str
    status: Status
    duration_s: float
    message: str | None = None


class HostFacts(Struct, frozen=True):
    """Where the survey was taken, and with whose eyes."""

    name: str
    kernel: str
    user: str
    uid: int
    initial_pid_namespace: bool = True
    pid_namespace: int | None = None
    hides_processes: bool = False
    """Whether /proc was mounted so that we see no processes of other users (hidepid)."""
    wsl: bool = False
    virtual: bool = False
    wsl_facts: WslFacts | None = None


class Survey(Struct, frozen=True, kw_only=True):
    """Everything that was seen, at one time on one host. A snapshot file is exactly this."""

    schema: int = SURVEY_SCHEMA
    program: str
    taken_at: str
    host: HostFacts
    observations: tuple[Observation, ...]
    probes: tuple[ProbeRun, ...]
