"""What the history answers: who held which GPU when, ghosts, waste, and memory over time.

Times are RFC 3339 in UTC, as the machine's clock said then; lengths in seconds were measured by a clock that
never jumps. Unknown is null.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.ledger import Kind
from vram.model.process import Workload


class Held(Struct, frozen=True, kw_only=True):
    """Memory that one process held on one GPU, from ``since`` to ``until`` (null: it still does).

    ``nbytes`` is its size at the time of the question, or the last one; ``most_bytes`` the largest. It was
    there for ``held_s`` seconds, ``idle_s`` of them idle. ``since_seen`` false: it was there before the
    recording began or went on; ``until_seen`` false: it ended while nothing was recorded. ``dead_pid`` is
    the process whose memory a ghost is, and ``code`` the finding.
    """

    gpu: int
    mig: str | None = None
    gpu_uuid: str | None = None
    kind: Kind
    nbytes: int | None
    most_bytes: int | None
    pid: int | None
    started_at: int | None = None
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    workload: Workload = Workload()
    co_holders: tuple[int, ...] = ()
    dead_pid: int | None = None
    code: str | None = None
    since: str
    until: str | None
    held_s: float
    idle_s: float = 0.0
    since_seen: bool = True
    until_seen: bool = True


class Recorded(Struct, frozen=True, kw_only=True):
    """What the history covers: from its first reading to its last one."""

    first: str | None
    last: str | None
    readings: int


class HoldersReport(Struct, frozen=True, kw_only=True):
    """``vram history --json``: who held memory at ``at``, by the reading of ``read_at``.

    ``gpu`` and ``mig`` are the GPU, or the MIG device of it, that was asked for; null: all of them.
    """

    schema: Literal[2] = 2
    gpu: int | None
    mig: str | None = None
    at: str
    read_at: str
    holders: tuple[Held, ...]
    recorded: Recorded
    notes: tuple[str, ...] = ()


class PastGhostsReport(Struct, frozen=True, kw_only=True):
    """``vram history ghosts --json``: memory that was no longer in use, the newest first."""

    schema: Literal[1] = 1
    ghosts: tuple[Held, ...]
    recorded: Recorded
    more: bool = False
    """Whether there are more than were asked for."""
    notes: tuple[str, ...] = ()


class SearchReport(Struct, frozen=True, kw_only=True):
    """``vram history search --json``: what was held by processes that match, the newest first."""

    schema: Literal[1] = 1
    query: str
    rows: tuple[Held, ...]
    recorded: Recorded
    more: bool = False
    notes: tuple[str, ...] = ()


class UserWaste(Struct, frozen=True, kw_only=True):
    """One user's memory over time, in byte-seconds: 1 GiB for an hour is 3,865,470,566,400.

    ``idle_byte_s``: of processes that slept while their GPUs did no work, or were stopped, for a minute or
    longer. ``leftover_byte_s``: of dead processes, held by living ones of this user. ``longest`` are the
    processes that wasted most, the worst first.
    """

    uid: int | None
    user: str | None
    held_byte_s: int
    idle_byte_s: int
    leftover_byte_s: int
    longest: tuple[Held, ...] = ()


class WasteReport(Struct, frozen=True, kw_only=True):
    """``vram history waste --json``: users by what they held without using it. Figures are by full hours."""

    schema: Literal[1] = 1
    users: tuple[UserWaste, ...]
    recorded: Recorded
    notes: tuple[str, ...] = ()


class SeriesPoint(Struct, frozen=True, kw_only=True):
    """One GPU at one moment. Of several readings, the one with the least free memory stands for all.

    ``kinds`` sum to ``total_bytes``. ``leftover_bytes`` are those that are no longer in use.
    ``total_bytes`` null: the GPU did not answer, or nothing was recorded until the next point.
    """

    at: str
    total_bytes: int | None
    kinds: dict[str, int] = {}
    leftover_bytes: int | None = None


class SeriesReport(Struct, frozen=True, kw_only=True):
    """``vram history series --json``: one GPU over time. A point holds until the next one."""

    schema: Literal[2] = 2
    gpu: int
    mig: str | None = None
    points: tuple[SeriesPoint, ...]
    recorded: Recorded
    notes: tuple[str, ...] = ()


HistoryReport = HoldersReport | PastGhostsReport | SearchReport | WasteReport | SeriesReport
