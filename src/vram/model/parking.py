"""Parked processes: their GPU memory lies in host memory until they are brought back."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.plan import Target
from vram.model.process import GivenUp
from vram.units import GIB, MIB

PARKED_SCHEMA = 1
RECORDER = "libvramtracer.so"
"""The library by which vram records a process."""

CheckpointState = Literal["running", "locked", "parked", "failed"]
"""What the driver reports of a process. "failed" is permanent: its next CUDA call fails."""

Purpose = Literal["park", "borrow", "sleep"]
"""Until when: until it is unparked, until a command has ended, or until the program is wanted."""

CHECKPOINT_SINCE, ON_ARM_SINCE = 570, 595
"""The first major versions of the driver that park processes."""


def reserve(memory_total: int | None) -> int:
    """Host memory that parking leaves free: a machine that swaps is useless to all its users."""
    return min(8 * GIB, max(512 * MIB, (memory_total or 0) // 20))


class GpuShare(Struct, frozen=True):
    """What a process has on one GPU, and needs there again. The UUID stays its own across reboots."""

    gpu: int
    uuid: str
    nbytes: int


class Parked(Struct, frozen=True, kw_only=True):
    """One entry of the journal: we have begun to move this process, or have moved it.

    Which of the two, only the driver knows. A process that was parked for a borrow is brought back as
    soon as that has ended.
    """

    schema: int = PARKED_SCHEMA
    host: str
    boot_id: str
    pid_namespace: int | None = None
    """Where the pid means this process: the namespace of the vram that wrote it, not the target's own."""
    target: Target
    shares: tuple[GpuShare, ...]
    since: str
    by_user: str
    by_pid: int
    purpose: Purpose

    @property
    def nbytes(self) -> int:
        return sum(share.nbytes for share in self.shares)


class Unrecorded(Parked, frozen=True, kw_only=True):
    """A process that the driver reports as parked, locked or failed, and that has no journal entry.

    ``since`` is when we found it. ``shares`` are the most that it may need: on each GPU that it may
    use, all of its own host memory. Empty: the room that it needs is not known.
    """

    state: CheckpointState


class SetAside(Struct, frozen=True):
    """A journal entry that is not used, because it is damaged or cannot be true."""

    name: str
    reason: str
    kept_as: str | None
    """What it is called now; None where it could not be renamed."""


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """What /proc and its control group tell of a process beyond who it is. None: not to be read."""

    memory_left: int | None = None
    """Bytes of host memory that it could still take: the machine's, or what its group may have."""
    memory_limited_by: str | None = None
    """The control group that allows less than the machine has, where one does."""
    memory_total: int | None = None
    nccl_peers: str | None = None
    """How we know that it is one of several ranks of an NCCL job."""
    nccl_ranks: int | None = None
    """How many they are, where its environment says so."""
    cpu_s: float | None = None
    """Processor time that it has used up to now."""
    runnable: bool = False
    """Whether one of its threads runs, or would if a processor were free."""
    given_up: GivenUp | None = None
    """How it has given up system calls that the driver may need in it."""


CheckpointStatus = Literal[
    "ok", "refused", "short", "unknown", "ended", "not-held", "timeout", "died", "unavailable"
]


class CheckpointAnswer(Struct, frozen=True, kw_only=True):
    """What came of a request to the driver.

    "refused": the driver answered *code* to *call*. "short": it would not fit on the GPU.
    "unknown": the driver reports a state of the process that this version does not know. "ended":
    the process is gone. "not-held": only the driver's threads of it cannot be made to run, for the reason
    in *message*, so it was not touched. "timeout": no answer yet. "died": the process that makes the calls
    was killed. "unavailable": no driver could be asked. ``took_s`` is spent in the driver's calls alone.
    """

    status: CheckpointStatus
    state: CheckpointState | None = None
    call: str | None = None
    code: int | None = None
    short: dict[str, int] = {}
    message: str | None = None
    took_s: float = 0.0
