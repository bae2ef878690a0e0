"""The doors to the world, as protocols. Everything that touches it comes in as ``Host``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from vram.model.files import DeviceFile
from vram.model.observation import HostFacts, Observation
from vram.model.process import ProcessFacts, ProcessRef


class Nvml(Protocol):
    """The management library, read where a deadline can end it.

    ``read`` yields observations as they come in and never raises: a call that fails, hangs
    or answers nonsense is an observation with that status. A GPU that hangs does not keep
    the others from being read.
    """

    def read(self, deadline_s: float) -> Iterator[Observation]: ...


class OpenFiles(Protocol):
    """Device files that processes hold open."""

    def holders(self, deadline_s: float) -> Iterator[tuple[ProcessRef, tuple[DeviceFile, ...]]]: ...


class Proc(Protocol):
    """What /proc knows of one process, or None where it is gone."""

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None: ...


class Clock(Protocol):
    """Time, so that tests can hold it still."""

    def now(self) -> str: ...
    def monotonic(self) -> float: ...


class Host(Protocol):
    """One machine: every port, and who we are on it."""

    nvml: Nvml
    files: OpenFiles
    proc: Proc
    clock: Clock

    def facts(self) -> HostFacts: ...
