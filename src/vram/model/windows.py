"""The Windows side of WSL2: its processes and adapters, as its performance counters tell."""

from __future__ import annotations

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
