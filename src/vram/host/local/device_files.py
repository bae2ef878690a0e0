"""Which open files are device files, by the text of their links and what stands behind them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection

from msgspec import Struct

from vram.model.files import FileKind

VIRTUAL_GPU = "VRAM_VIRTUAL_GPU"
_NVIDIA_MAJOR = 195  # of /dev/nvidia<minor> and /dev/nvidiactl; the others get a free number at boot
_DELETED = b" (deleted)"

# Compiled when they are used: no machine needs all of them.
_REAL = (
    rb"/dev/nvidia(?:(?P<gpu>\d{1,4})|(?P<control>ctl)|(?P<uvm>-uvm(?:-tools)?)|(?P<other>-[\w/-]+))"
    rb"|(?P<dmabuf>/dmabuf:(?s:.*))|(?P<dxg>/dev/dxg)"
)
_DRM = rb"/dev/dri/(?:card|renderD)(\d{1,4})"
_DRM_MAJOR = 226
DRM_PREFIX = b"/dev/dri/"
_VIRTUAL = (
    rb"nvidia(?:(?P<gpu>\d{1,4})(?:\.\d+)?|(?P<control>ctl(?:\.\d+)?)|(?P<uvm>-uvm))|(?P<dmabuf>dmabuf\.\d+)"
)
# Under Windows' driver all is reached through one device; a client's own file stands for it too.
_VIRTUAL_WINDOWS = rb"(?P<dxg>dxg|nvidia\d{1,4}\.\d+)"


class RawFile(Struct, frozen=True):
    """A descriptor as /proc shows it. ``mode`` is 0 where the file could not be asked.

    ``info`` is the fdinfo of a DRM file; None where it could not be read, for the reason that
    ``error`` gives. ``thread`` is the one through whose folder it was seen, where that is not the
    process's first: a first thread that has ended shows none.
    """

    pid: int
    started_at: int | None
    fd: int
    link: bytes
    device: int
    inode: int
    size: int
    mode: int
    info: bytes | None = None
    error: int = 0
    thread: int | None = None


class Limits(Struct, frozen=True):
    """How many descriptors a walk may find: of one process, and in all.

    Anybody can open files without end whose links look like a device's. A process with a context on each of
    16 GPUs has about 400; one for each allocation that it shares comes to that.
    """

    of_process: int = 1 << 12
    in_all: int = 1 << 20


LIMITS = Limits()


class Walked(Struct, frozen=True):
    """What a walk over /proc found: matching descriptors, and owners of processes that may not be read.

    ``late``: the deadline came first. ``full``: there were more than the limit. ``cut`` are the pids that
    have more than a process's limit.
    """

    files: list[RawFile]
    denied: list[int]
    late: bool = False
    full: bool = False
    cut: tuple[int, ...] = ()


class Naming(Struct, frozen=True):
    """What a link names."""

    kind: FileKind
    path: bytes
    minor: int | None = None


class DeviceNames:
    """The names of device files: the real driver's, or those in a virtual GPU's folder.

    Never both: what holds a real GPU has no part in the virtual one's account. *drm* are the
    drivers of AMD's and Intel's GPUs that are looked at too, if any.
    """

    def __init__(self, virtual_folder: str | None = None, drm: Collection[str] = ()) -> None:
        self.virtual = virtual_folder is not None
        self._dev = os.fsencode(os.path.realpath(virtual_folder)) + b"/dev/" if virtual_folder else b""
        self._windows = self.virtual and os.path.exists(self._dev + b"dxg")
        self.mapped = (self._dev,) if self.virtual else (b"/dev/nvidia", b"/dmabuf:", b"/dev/dxg")
        self.prefixes = self.mapped
        self.informed = (DRM_PREFIX,) if drm else ()
        if drm:
            self.prefixes = tuple(dict.fromkeys((*self.mapped, b"/dmabuf:", DRM_PREFIX)))
        # A virtual GPU has dma-bufs of its own kind; the kernel's then belong to the others only.
        self._exporters = tuple(drm)
        self.uvm = (self._dev or b"/dev/") + b"nvidia-uvm"

    def name(self, file: RawFile) -> Naming | None:
        """What *file* is to us, or None where its name merely looks alike."""
        path = file.link.removesuffix(_DELETED)
        if path.startswith(DRM_PREFIX):
            return _drm_node(path, file) if self.informed else None
        if self.virtual and not (self.informed and path.startswith(b"/dmabuf:")):
            return self._virtual(path, file)
        return self._real(path, file)

    def may_be_gpu_memory(self, exporter: str | None) -> bool:
        """Cameras and compositors export dma-bufs too: theirs are no GPU's memory."""
        if exporter is None or exporter in self._exporters:
            return True
        return not self.virtual and exporter.startswith("nv")

    def _real(self, path: bytes, file: RawFile) -> Naming | None:
        found = re.fullmatch(_REAL, path)
        if found is None or not found.lastgroup:
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        if kind == "dmabuf":
            return Naming("dmabuf", b"/dmabuf:")
        if file.mode and not _is_nvidia_device(kind, file):
            return None
        return Naming(kind, path, int(found["gpu"]) if kind == "gpu" else None)

    def _virtual(self, path: bytes, file: RawFile) -> Naming | None:
        pattern = _VIRTUAL_WINDOWS if self._windows else _VIRTUAL
        inside = path.startswith(self._dev)
        found = re.fullmatch(pattern, path.removeprefix(self._dev)) if inside else None
        if found is None or not found.lastgroup or (file.mode and not stat.S_ISREG(file.mode)):
            return None
        kind: FileKind = found.lastgroup  # type: ignore[assignment]
        if kind == "dxg":
            return Naming(kind, self._dev + b"dxg")
        return Naming(kind, path, int(found["gpu"]) if kind == "gpu" else None)


def _drm_node(path: bytes, file: RawFile) -> Naming | None:
    found = re.fullmatch(_DRM, path)
    if found is None:
        return None
    if not file.mode:
        return Naming("drm", path, int(found[1]))
    # A container can give its device files any name; the kernel's number is the device.
    if not stat.S_ISCHR(file.mode) or os.major(file.device) != _DRM_MAJOR:
        return None
    return Naming("drm", path, os.minor(file.device))


def _is_nvidia_device(kind: FileKind, file: RawFile) -> bool:
    """A plain file can be called /dev/nvidia0 in a container that owns its /dev."""
    if not stat.S_ISCHR(file.mode):
        return False
    return kind not in ("gpu", "control") or os.major(file.device) == _NVIDIA_MAJOR
