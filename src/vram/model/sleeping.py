"""Programs that sleep: by what each is wanted again, what of its waiting is not visible, and its state."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.parking import GpuShare
from vram.model.plan import Target

SLEEPING_SCHEMA = 1

WakeKind = Literal["listening", "connection", "datagrams", "pipe", "terminal", "event"]
"""An open file by which a program is wanted: a socket that takes connections, one that is connected, one that
takes datagrams, a pipe, a terminal, an inotify descriptor."""

HiddenWait = Literal["time", "shared memory", "running", "io_uring"]
"""What a thread does that no open file shows: it waits for a time-out, for memory that another process
changes, it runs, or it waits for requests that it has handed to the kernel."""

SleepState = Literal["awake", "going to sleep", "asleep", "waking", "waiting for room"]


class WakeFile(Struct, frozen=True, kw_only=True):
    """One open file by which a process is wanted. ``unread``: connections or bytes that wait in it now."""

    pid: int
    fd: int
    kind: WakeKind
    address: str = ""
    """Where people know it from: "127.0.0.1:8000", the path of a Unix socket or of a named pipe."""
    port: int | None = None
    unread: int = 0


WakeCause = Literal["file", "signal", "asked", "ended", "other"]


class WakeReason(Struct, frozen=True, kw_only=True):
    """Why a program is to be awake: something arrived in ``file``, ``signal`` was sent to it, it was asked
    for (``vram wake``), a part of it has ended, or ``detail``."""

    cause: WakeCause
    file: WakeFile | None = None
    signal: str = ""
    detail: str = ""


class WaitFacts(Struct, frozen=True, kw_only=True):
    """By what one process is wanted, and how many of its threads wait for what cannot be seen.

    ``files`` is None where the kernel does not let us copy its descriptors, for the reason in ``denied``.
    ``realtime`` threads have a real-time priority. ``watchdog_s``: systemd ends it unless it gives a sign of
    life that often.
    """

    pid: int
    files: tuple[WakeFile, ...] | None = ()
    denied: str = ""
    hidden: dict[HiddenWait, int] = {}
    realtime: int = 0
    watchdog_s: float | None = None


class SleepOptions(Struct, frozen=True, kw_only=True):
    """How its owner wants a program to sleep.

    ``idle_s``: it is put to sleep whenever it has been idle for so long; None: once, now. Only connections to
    ``ports`` wake it, where any are named. After a wake it stays awake for ``min_awake_s`` at least, whoever
    wants its place. ``may_make_room``: it may be put to sleep when another program is wanted and needs its
    place.
    """

    idle_s: float | None = None
    ports: tuple[int, ...] = ()
    min_awake_s: float = 5.0
    may_make_room: bool = True


class SleepCheck(Struct, frozen=True, kw_only=True):
    """What `vram sleep --check` found: whether a program may sleep, and what would wake it.

    ``refusal`` is why it may not, or not now. ``memory_left`` is the host memory that it could take.
    """

    targets: tuple[Target, ...]
    shares: tuple[GpuShare, ...]
    waits: tuple[WaitFacts, ...]
    options: SleepOptions
    memory_left: int | None = None
    refusal: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(share.nbytes for share in self.shares)


class Sleeper(Struct, frozen=True, kw_only=True):
    """One program that sleeps and wakes as a whole, as ``vram sleep`` lists it.

    ``since`` is when its state began. ``wakes`` counts them; ``last_wake_s`` are the latest, from the first
    sign that it was wanted until it ran again. ``reason`` is why it was woken last, or is woken now.
    """

    targets: tuple[Target, ...]
    shares: tuple[GpuShare, ...]
    state: SleepState
    since: str
    options: SleepOptions = SleepOptions()
    wakes: int = 0
    last_wake_s: tuple[float, ...] = ()
    reason: WakeReason | None = None
    trouble: str = ""
    """Why it does not sleep or wake as it should, where it does not."""

    @property
    def nbytes(self) -> int:
        return sum(share.nbytes for share in self.shares)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(target.process.pid for target in self.targets)
