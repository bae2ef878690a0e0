"""The doors to the world, as protocols. Everything that touches it comes in as ``Host``.

No port raises for what the world does: a denial, a hang, an absence is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from vram.model.files import DeviceFile
from vram.model.observation import HostFacts, Observation, Status
from vram.model.process import ProcessFacts, ProcessRef


class Dmabuf(Struct, frozen=True):
    """A dma-buf that a process has open; ``nbytes`` and ``exporter`` as its fdinfo says."""

    fd: int
    inode: int
    nbytes: int | None
    exporter: str | None


class Holding(Struct, frozen=True):
    """One process and the device files that it has open."""

    process: ProcessRef
    files: tuple[DeviceFile, ...]
    dmabufs: tuple[Dmabuf, ...] = ()
    mappings: int | None = None
    managed_bytes: int | None = None


class FileScan(Struct, frozen=True):
    """Who has device files open, and how far we could look."""

    holdings: tuple[Holding, ...]
    denied_users: tuple[str, ...] = ()
    denied_processes: int = 0
    complete: bool = True


class Candidate(Struct, frozen=True):
    """A control descriptor that may be an exported allocation."""

    process: ProcessRef
    fd: int
    description: int | None = None


class Proof(Struct, frozen=True):
    """What importing a copy of a candidate told. ``exported`` None: it could not be tried."""

    candidate: Candidate
    exported: bool | None
    nbytes: int | None = None
    gpu_uuid: str | None = None
    status: Status = "ok"
    message: str | None = None


class Nvml(Protocol):
    """The management library, read where a deadline can end it.

    Calling ``read`` starts the reading at once, in a process of its own; the iterator
    collects it. A call that fails, hangs or answers nonsense is an observation with that
    status, and a GPU that hangs does not keep the others from being read.
    """

    def read(self, deadline_s: float) -> Iterator[Observation]: ...


class OpenFiles(Protocol):
    """Device files that processes hold open: of *pids*, or of everybody."""

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan: ...


class Exports(Protocol):
    """Tells exported allocations from ordinary control descriptors."""

    def prove(self, candidates: Sequence[Candidate], deadline_s: float) -> Iterable[Proof]: ...


class Proc(Protocol):
    """What /proc knows of one process, or None where it is gone."""

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None: ...
    def started_at(self, pid: int) -> int | None: ...


class Clock(Protocol):
    """Time, so that tests can hold it still."""

    def now(self) -> str: ...
    def monotonic(self) -> float: ...


class Host(Protocol):
    """One machine: every port, and who we are on it."""

    @property
    def nvml(self) -> Nvml: ...
    @property
    def files(self) -> OpenFiles: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def proc(self) -> Proc: ...
    @property
    def clock(self) -> Clock: ...

    def facts(self) -> HostFacts: ...
