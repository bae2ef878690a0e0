"""A fleet at one moment: its nodes, their GPUs in sums, and why some nodes could not be read."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.observation import Status

NodeState = Literal["leftovers", "unexplained", "incomplete", "rejected", "unread", "ok"]
"""In the order of the table: what needs a look comes first."""

NodeCode = Literal[
    "no-answer",  # the deadline passed
    "not-asked",  # the deadline of the whole fleet passed before its turn
    "unreachable",  # ssh, srun or Ray could not get there
    "no-vram",
    "failed",  # vram was started there, and ended without a snapshot
    "too-large",
    "no-driver",
    "other-version",
    "bad-snapshot",
    "other-host",
    "wrong-time",
    "impossible",
    "duplicate",
    "not-judged",  # judging took too long or too much memory
    "gpu",  # a GPU did not answer
    "source",  # a source of the node's survey did not answer
]
"""Why a node is not ok, where its memory is not the reason. A code never changes its meaning."""

Grouping = Literal["user", "job", "pod"]


class FleetGpu(Struct, frozen=True, kw_only=True):
    """One GPU of a node. ``held_bytes`` includes leftovers and unexplained ones.

    ``total_bytes`` is held, free and ``other_bytes``: what the driver reserves or does not report.
    All are None where the GPU did not answer; ``status`` and ``message`` say why.
    """

    index: int
    uuid: str | None
    name: str
    total_bytes: int | None
    held_bytes: int | None = None
    leftover_bytes: int | None = None
    unexplained_bytes: int | None = None
    free_bytes: int | None = None
    other_bytes: int | None = None
    oldest_ghost_s: float | None = None
    """How long the oldest process that holds a leftover here has been running."""
    status: Status = "ok"
    message: str | None = None


class FleetGhost(Struct, frozen=True, kw_only=True):
    """Memory of a dead owner, and the process that holds it; ``pid`` None: no visible one does.

    ``places`` are its GPUs as people write them: numbers, or MIG devices such as "0:1".
    """

    gpus: tuple[int, ...]
    places: tuple[str, ...]
    nbytes: int | None
    pid: int | None
    user: str | None
    command: str | None
    age_s: float | None
    dead_pids: tuple[int, ...] = ()
    certain: bool = True


class FleetShare(Struct, frozen=True, kw_only=True):
    """What one user, job or pod holds; ``name`` None gathers what belongs to none."""

    name: str | None
    held_bytes: int
    leftover_bytes: int
    processes: int
    gpus: int
    nodes: int = 1


class FleetNode(Struct, frozen=True, kw_only=True):
    """One node. ``name`` is what it was asked by, ``host`` what its snapshot calls itself.

    Sizes of a rejected node are not kept: nothing that it says is counted.
    """

    name: str
    state: NodeState
    code: NodeCode | None = None
    message: str | None = None
    host: str | None = None
    taken_at: str | None = None
    program: str | None = None
    driver_version: str | None = None
    virtual: bool = False
    took_s: float | None = None
    nbytes: int | None = None
    """The size of its snapshot."""
    gpus: tuple[FleetGpu, ...] = ()
    ghosts: tuple[FleetGhost, ...] = ()
    shares: tuple[FleetShare, ...] = ()


class FleetSums(Struct, frozen=True, kw_only=True):
    """The whole fleet, as far as it was read. ``states`` counts nodes by state."""

    nodes: int
    gpus: int
    total_bytes: int
    held_bytes: int
    leftover_bytes: int
    unexplained_bytes: int
    free_bytes: int
    oldest_ghost_s: float | None
    states: dict[str, int]


class FleetReport(Struct, frozen=True, kw_only=True):
    """``vram fleet --json``: nodes in the order of the table, trouble first.

    ``source`` is "recorded", "ssh", "ray" or "srun". With ``--by``, ``shares`` are the fleet's sums.
    ``schema`` changes when a field changes its meaning or goes away; new fields may come without that.
    """

    schema: Literal[2]
    taken_at: str
    source: str
    took_s: float
    sums: FleetSums
    nodes: tuple[FleetNode, ...]
    by: Grouping | None = None
    shares: tuple[FleetShare, ...] = ()


# ---- `vram fleet free` ----

FreeState = Literal["planned", "nothing", "freed", "partly", "refused", "unread"]


class FleetFree(Struct, frozen=True, kw_only=True):
    """What one node planned or did. ``returned_bytes`` were measured there, None where nothing ran."""

    name: str
    state: FreeState
    digest: str | None = None
    steps: tuple[str, ...] = ()
    promised_bytes: int | None = None
    returned_bytes: int | None = None
    message: str | None = None
    hint: str | None = None


class FleetFreeReport(Struct, frozen=True, kw_only=True):
    """``vram fleet free --json``. ``executed`` False: the plans were only made."""

    schema: Literal[1]
    executed: bool
    returned_bytes: int | None
    nodes: tuple[FleetFree, ...]
