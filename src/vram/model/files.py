"""Open files that hold GPU memory: device files, exported handles, dma-bufs, DRM clients (AMD, Intel)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FileKind = Literal["gpu", "control", "uvm", "dmabuf", "drm", "dxg", "other"]


class DeviceFile(Struct, frozen=True, omit_defaults=True):
    """One descriptor on a device file.

    ``description`` names the open file description: two descriptors with the same name
    share it (by fork, dup or passing), so both must close before memory comes back. It
    is None where the kernel would not tell.
    """

    fd: int
    kind: FileKind
    path: str
    minor: int | None = None
    description: int | None = None


class FilesFacts(Struct, frozen=True, omit_defaults=True, tag="files"):
    """Every device file that one process holds open, and how many mappings it has of them."""

    files: tuple[DeviceFile, ...]
    mappings: int | None = None
    managed_bytes: int | None = None
    """Managed memory that the process has, wherever it lies now."""


class DmabufFacts(Struct, frozen=True, omit_defaults=True, tag="dmabuf"):
    """A dma-buf that a process holds open. The bytes are the observation's own."""

    fd: int
    inode: int
    exporter: str | None = None


class ExportFacts(Struct, frozen=True, omit_defaults=True, tag="export"):
    """A control descriptor that proved to be an exported allocation.

    Proved by importing a copy of it and mapping it; that also measured its size, which
    is the observation's own.
    """

    fd: int
    description: int | None = None
    gpu_instance: int | None = None
    """The GPU instance that it lies in, where the GPU is divided by MIG."""


class UnreadableFacts(Struct, frozen=True, omit_defaults=True, tag="unreadable"):
    """Processes whose open files we may not read, by owner."""

    processes: int
    users: tuple[str, ...] = ()


ElsewhereCode = Literal[
    "in-flight", "io-uring", "own-files", "other-driver", "console", "exiting", "untried", "cut-off"
]
"""A descriptor on its way through a socket, or registered with an io_uring; a thread with files of its
own; a file of another driver that takes dma-bufs or device memory; the console's picture; a process that
is exiting; an exported handle that was not measured; what there was no time or no right to read."""


class ElsewhereFacts(Struct, frozen=True, tag="elsewhere"):
    """Where memory may be held that no open file shows. Empty: nowhere, and everything was read."""

    found: tuple[ElsewhereCode, ...] = ()


# ---- GPUs of AMD and Intel: clients by their open files, and what sysfs and ROCm report ----


class Region(Struct, frozen=True, omit_defaults=True):
    """One kind of memory that a client uses, as its driver names it.

    ``dedicated`` memory lies on the GPU; the rest is the machine's own. ``nbytes`` None: the
    figure could not be read. ``shared`` is the part that other clients use too, where it is told.
    """

    name: str
    dedicated: bool
    nbytes: int | None
    shared: int | None = None


class ClientFacts(Struct, frozen=True, omit_defaults=True, tag="client"):
    """One open file on a GPU, as its fdinfo tells.

    ``client`` numbers it on its GPU: descriptors with the same number are one client, in
    whatever process they are. Where the driver gives no number, ``description`` tells open
    files apart, if the kernel compares them. ``address`` is the GPU's PCI address; where it is
    missing, the device file's ``node`` number names the GPU.
    """

    fd: int
    driver: str | None = None
    address: str | None = None
    node: int | None = None
    client: int | None = None
    description: int | None = None
    regions: tuple[Region, ...] = ()


class ComputeFacts(Struct, frozen=True, tag="compute"):
    """The kernel's list of ROCm processes names a pid. The bytes are the observation's own.

    ``system``: they lie in the machine's memory, not in the GPU's.
    """

    address: str
    system: bool = False


class CapacityFacts(Struct, frozen=True, tag="capacity"):
    """How much memory a GPU has, where the driver does not tell how much of it is in use."""

    total: int


class SystemMemoryFacts(Struct, frozen=True, tag="system_memory"):
    """The machine's own memory that a GPU may use, and how much of it does."""

    total: int | None
    used: int | None
