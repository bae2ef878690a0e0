"""WSL2 and the Windows side of it: how Linux runs there, and what Windows' performance counters report."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class AdapterFacts(Struct, frozen=True, omit_defaults=True, tag="windows-adapter"):
    """One graphics adapter. Windows names it by a LUID, which changes at every boot."""

    luid: str
    name: str | None = None
    vendor: int | None = None
    total: int | None = None
    bus: tuple[int, int, int] | None = None
    """Bus, device and function on PCI, where Windows' registry tells."""
    local: int | None = None
    """Device memory in use on it, by all processes together."""
    shared: int | None = None
    """Host memory that it uses."""


class WindowsMemoryFacts(Struct, frozen=True, omit_defaults=True, tag="windows-memory"):
    """What one Windows process has on one adapter. None: the counter is missing.

    Local and non-local bytes are resident, in device and in host memory. Dedicated and shared
    ones are committed, and can be many times what is resident.
    """

    pid: int
    luid: str
    name: str | None = None
    local: int | None = None
    non_local: int | None = None
    dedicated: int | None = None
    shared: int | None = None

    @property
    def device_bytes(self) -> int | None:
        return self.dedicated if self.local is None else self.local

    @property
    def host_bytes(self) -> int | None:
        return self.shared if self.non_local is None else self.non_local


class WindowsProcess(Struct, frozen=True):
    """A process of Windows that keeps bytes of a GPU. Its pid means nothing on this side."""

    pid: int
    name: str | None
    guest: bool = False
    """It is the virtual machine that all of WSL2 runs in."""
    host_bytes: int | None = None
    """What it has in host memory for this GPU, beside its device memory."""


class WindowsSide(Struct, frozen=True, kw_only=True):
    """What Windows' counters say about one GPU, or why they say nothing."""

    read: bool
    message: str | None = None
    code: str | None = None
    """Why nothing was read, as the observation said it."""
    adapter: str | None = None
    certain: bool = False
    """Whether that adapter surely is this GPU."""
    counted_bytes: int | None = None
    """Device memory by the counters of all processes."""
    guest_bytes: int | None = None
    guest_host_bytes: int | None = None
    host_bytes: int | None = None
    """Host memory that processes use for this GPU: what did not fit, and what was pinned."""


# ---- how Linux runs inside of Windows ----


class WslFacts(Struct, frozen=True):
    """Which WSL this is, and what of the GPU and of Windows can be reached from here.

    Version 1 translates system calls and has no GPU. In version 2 a GPU is the Windows
    driver's, and one virtual machine runs every distribution.
    """

    version: Literal[1, 2]
    gpu_device: bool = False
    """/dev/dxg is there: the way to every GPU."""
    libraries: str | None = None
    """The folder of the Windows driver's Linux libraries, where it is there."""
    interop: bool = False
    """Windows programs can be started from here."""
    container: bool = False
    """A container inside: it has neither the distribution's files nor its interop."""
