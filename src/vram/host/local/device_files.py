"""Which open files are device files, by the text of their links and what stands behind them."""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from vram.model.files import FileKind

VIRTUAL_GPU = "VRAM_VIRTUAL_GPU"
_NVIDIA_MAJOR = 195  # of /dev/nvidia<minor> and /dev/nvidiactl; the others get a free number at boot
_DELETED = b" (deleted)"

_REAL = re.compile(
    rb"/dev/nvidia(?:(?P<gpu>\d{1,4})|(?P<control>ctl)|(?P<uvm>-uvm(?:-tools)?)|(?P<other>-[\w/-]+))"
    rb"|(?P<dmabuf>/dmabuf:.*)",
    re.DOTALL,
)
_VIRTUAL = re.compile(
    rb"nvidia(?:(?P<gpu>\d{1,4})(?:\.\d+)?|(?P<control>ctl(?:\.\d+)?)|(?P<uvm>-uvm))|(?P<dmabuf>dmabuf\.\d+)"
)


class RawFile(NamedTuple):
    """A descriptor as /proc shows it. ``mode`` is 0 where the file could not be asked."""

    pid: int
    started_at: int | None
    fd: int
    link: bytes
    device: int
    inode: int
    size: int
    mode: int


class Naming(NamedTuple):
    """What a link names."""

    kind: FileKind
    path: bytes
    minor: int | None = None


class DeviceNames:
    """The names of device files: the real driver's, or those in a virtual GPU's folder.

    Never both: what holds a real GPU has no part in the virtual one's account.
    """

    def __init__(self, virtual_folder: str | None = None) -> None:
        self.virtual = virtual_folder is not None
        self._dev = os.fsencode(os.path.realpath(virtual_folder)) + b"/dev/" if virtual_folder else b""
        self.prefixes = (self._dev,) if self.virtual else (b"/dev/nvidia", b"/dmabuf:")
        self.uvm = (self._dev or b"/dev/") + b"nvidia-uvm"

    def name(self, file: RawFile) -> Naming | None:
        """What *file* is to us, or None where its name merely looks alike."""
        path = file.link.removesuffix(_DELETED)
        return self._virtual(path, file) if self.virtual else self._real(path, file)

    def _real(self, path: bytes, file: RawFile) -> Naming | None:
        found = _REAL.fullmatch(path)
        if found is None or not found.lastgroup:
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        if kind == "dmabuf":
            return Naming("dmabuf", b"/dmabuf:")
        if file.mode and not _is_nvidia_device(kind, file):
            return None
        return Naming(kind, path, int(found["gpu"]) if kind == "gpu" else None)

    def _virtual(self, path: bytes, file: RawFile) -> Naming | None:
        found = _VIRTUAL.fullmatch(path.removeprefix(self._dev)) if path.startswith(self._dev) else None
        if found is None or not found.lastgroup or (file.mode and not stat.S_ISREG(file.mode)):
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        return Naming(kind, path, int(found["gpu"]) if kind == "gpu" else None)


def _is_nvidia_device(kind: FileKind, file: RawFile) -> bool:
    """A plain file can be called /dev/nvidia0 in a container that owns its /dev."""
    if not stat.S_ISCHR(file.mode):
        return False
    return kind not in ("gpu", "control") or os.major(file.device) == _NVIDIA_MAJOR
