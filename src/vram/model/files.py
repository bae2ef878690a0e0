"""Open device files: what really keeps GPU memory alive."""

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
    """Processes whose open files we may not read, by owner; ``init``: the machine's first is one of them."""

    processes: int
    users: tuple[str, ...] = ()
    init: bool = False
