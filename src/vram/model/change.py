"""What changed between two readings of the GPUs: an event code and the values that go with it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.ledger import Confidence, Kind
from vram.model.observation import Status
from vram.model.process import Workload

Event = Literal[
    "driver-gone",
    "driver-back",
    "gpu-removed",
    "gpu-lost",
    "gpu-unreadable",
    "gpu-back",
    "gpu-added",
    "probe-failed",
    "probe-recovered",
    "ended",
    "released",
    "parked",
    "unparked",
    "shrank",
    "ghost-gone",
    "unattributed-gone",
    "hidden-gone",
    "freed",
    "started",
    "grew",
    "stopped",
    "continued",
    "ghost",
    "unattributed",
    "hidden",
    "finding",
    "finding-resolved",
]
"""In the order in which the changes of one reading are reported."""

GROUPS: dict[str, tuple[Event, ...]] = {
    "processes": (
        *("started", "ended", "released", "grew", "shrank"),
        *("stopped", "continued", "parked", "unparked"),
    ),
    "ghosts": ("ghost", "ghost-gone"),
    "memory": ("freed", "unattributed", "unattributed-gone", "hidden", "hidden-gone"),
    "gpus": ("gpu-lost", "gpu-unreadable", "gpu-back", "gpu-added", "gpu-removed"),
    "driver": ("driver-gone", "driver-back"),
    "probes": ("probe-failed", "probe-recovered"),
    "findings": ("finding", "finding-resolved"),
}
"""Names for several events at once."""

MEANINGS: dict[Event, str] = {
    "started": "a process is charged with memory of a GPU for the first time",
    "ended": "a process that was charged with memory of a GPU is gone",
    "released": "a process still runs, and is charged with nothing on that GPU any more",
    "grew": "a process, a ghost or unattributed memory is larger than it was last reported, by --min or more",
    "shrank": "the same, smaller",
    "stopped": "a process that holds GPU memory was stopped by a signal or a debugger",
    "continued": "it runs again",
    "parked": "`vram park` or `vram borrow` moved the memory of a process into host memory",
    "unparked": "it is back on the GPU",
    "ghost": "memory of a dead process that another one still holds, or that no visible process holds",
    "ghost-gone": "that memory is held no more",
    "freed": "the free memory of a GPU rose after an end; nbytes is by how much",
    "unattributed": "memory is in use, and nothing that can be seen accounts for it",
    "unattributed-gone": "less than half of --min of it is left",
    "hidden": "memory is in use by processes that cannot be named from here",
    "hidden-gone": "less than half of --min of it is left",
    "gpu-lost": "the driver reports that it lost the GPU",
    "gpu-unreadable": "the GPU did not answer, or its process lists could not be read",
    "gpu-back": "the GPU answers again",
    "gpu-added": "there is a GPU that was not there before",
    "gpu-removed": "a GPU is not there any more",
    "driver-gone": "no driver answers on this host",
    "driver-back": "the driver answers again",
    "probe-failed": "a source other than the driver failed or took too long",
    "probe-recovered": "that source answers again",
    "finding": "a problem or a warning that no other event reports; code names the rule",
    "finding-resolved": "that finding is there no more",
}


class Change(Struct, frozen=True, kw_only=True, tag_field="record", tag="change"):
    """One change. ``nbytes`` is by how much memory changed, with its sign; ``held_bytes`` is held now.

    ``pid`` and ``started_at`` name the process, or the holder of a ghost; ``dead_pid`` is the process whose
    memory a ghost is. ``free_bytes`` and ``total_bytes`` are those of the GPU after the change. ``code`` is
    the rule (VR101) or says why a GPU, the driver or a source does not answer. ``taken_over_from`` is a
    process that ended in the same reading in which this one grew by what it had been charged with: likely
    memory that both shared, and that is charged to this one now. Unknown is null.
    """

    schema: Literal[1] = 1
    at: str
    event: Event
    gpus: tuple[int, ...] = ()
    mig: str | None = None
    nbytes: int | None = None
    held_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    kind: Kind | None = None
    pid: int | None = None
    started_at: int | None = None
    user: str | None = None
    command: str | None = None
    workload: Workload = Workload()
    dead_pid: int | None = None
    co_holders: tuple[int, ...] = ()
    confidence: Confidence | None = None
    code: str | None = None
    probe: str | None = None
    status: Status | None = None
    message: str | None = None
    taken_over_from: int | None = None


class WatchedGpu(Struct, frozen=True, kw_only=True):
    """One GPU when the watch began. ``processes`` are charged with memory of it."""

    index: int
    mig: str | None
    uuid: str | None
    name: str
    status: Status
    total_bytes: int | None
    free_bytes: int | None
    processes: int


class WatchState(Struct, frozen=True, kw_only=True, tag_field="record", tag="state"):
    """What was there when the watch began, each as the change that would have reported it."""

    schema: Literal[1] = 1
    at: str
    host: str
    gpus: tuple[WatchedGpu, ...]
    present: tuple[Change, ...]
