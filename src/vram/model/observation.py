"""What was seen: one source, one statement. Failure is a statement too."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from vram.model.cgroups import DmemFacts
from vram.model.files import (
    CapacityFacts,
    ClientFacts,
    ComputeFacts,
    DmabufFacts,
    ElsewhereFacts,
    ExportFacts,
    FilesFacts,
    SystemMemoryFacts,
    UnreadableFacts,
)
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts, MigFacts
from vram.model.process import ParkedProcess, ProcessFacts, ProcessRef, RestFacts
from vram.model.windows import AdapterFacts, WindowsMemoryFacts, WslFacts

SURVEY_SCHEMA = 1

Status = Literal["ok", "denied", "unsupported", "failed", "timeout", "lost"]

Facts: TypeAlias = (
    DriverFacts
    | GpuFacts
    | MemoryFacts
    | MigFacts
    | ChargeFacts
    | ProcessFacts
    | RestFacts
    | FilesFacts
    | DmabufFacts
    | ExportFacts
    | UnreadableFacts
    | ElsewhereFacts
    | ClientFacts
    | ComputeFacts
    | CapacityFacts
    | SystemMemoryFacts
    | AdapterFacts
    | WindowsMemoryFacts
    | DmemFacts
)


# Codes that are asked for in more than one place; docs/reference/json.md lists all of them.
NVML_NO_LIBRARY = "nvml-12"
NVML_RESET_REQUIRED = "nvml-16"
NVML_MISMATCH = "nvml-18"
NO_NVML_BINDING = "no-nvml-binding"
NVML_BINDING_TOO_NEW = "nvml-binding-too-new"
WINDOWS_LEFT_OUT = "windows-left-out"
NO_POWERSHELL = "no-powershell"
NO_INTEROP = "no-interop"


class Observation(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One statement of one probe. ``nbytes`` None means unknown, never zero.

    Where ``status`` is not "ok", ``code`` says why: it never changes its meaning. ``message`` says the
    same to people. "nvml-18" is the NVML call's own return value.
    """

    probe: str
    status: Status = "ok"
    gpu: int | None = None
    process: ProcessRef | None = None
    nbytes: int | None = None
    facts: Facts | None = None
    message: str | None = None
    code: str | None = None


def with_code(observation: Observation) -> Observation:
    """*observation*, with its status as its code where it failed and the probe knows no better one."""
    if observation.status == "ok" or observation.code is not None:
        return observation
    return replace(observation, code=observation.status)


class ProbeRun(Struct, frozen=True):
    """How one probe went: its worst status, with the code and message of that, and how long it took."""

    name: str
    status: Status
    duration_s: float
    message: str | None = None
    code: str | None = None


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
    parked: tuple[ParkedProcess, ...] = ()
    """Whom this user parked: they hold nothing on a GPU, so no probe sees them there."""
