"""The private folder a virtual GPU lives in: made so that nobody else can have prepared it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from vram.errors import VirtualGpuError
from vram.units import GIB
from vram.virtualgpu import leftovers

PREFIX = "vram-virtual-"

# Device bytes lie in this folder's files once touched. Memory is faster than a disk, but the
# 64 MiB that containers get for shared memory are soon full, and a full one kills with SIGBUS.
SHARED_MEMORY = "/dev/shm"
ROOM_WANTED = GIB


def make(path: str | os.PathLike[str] | None = None) -> Path:
    """Make a folder of mode 0700: at *path*, or under a name that could not be foreseen."""
    if path is not None:
        return _make_at(Path(path))
    parent = _parent() or tempfile.gettempdir()
    leftovers.sweep(Path(parent), PREFIX)
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise VirtualGpuError(
            f"no folder can be made for the virtual GPU: {error.strerror}",
            hint="set TMPDIR to a folder that you can write to",
        ) from error


def check(path: str | os.PathLike[str]) -> Path:
    """Return *path* if it is a virtual GPU's folder, of ours and of nobody else."""
    folder = Path(path)
    _check_private(folder)
    if not (folder / "config").is_file():
        raise VirtualGpuError(
            f"{folder} is not a virtual GPU's folder", hint="it is made by `vram virtual` and goes with it"
        )
    return folder


def _parent() -> str | None:
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    roomy = space.f_bavail * space.f_frsize >= ROOM_WANTED
    return SHARED_MEMORY if roomy and os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None


def _make_at(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _check_private(folder)
        if any(folder.iterdir()):
            raise VirtualGpuError(
                f"{folder} is not empty", hint="name a folder that does not exist"
            ) from None
    except OSError as error:
        raise VirtualGpuError(f"{folder} cannot be made: {error.strerror}") from error
    return folder


def _check_private(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise VirtualGpuError(f"{folder} cannot be used: {error.strerror}") from error
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not private:
        raise VirtualGpuError(
            f"{folder} is not a folder of yours alone", hint="others could have prepared it: name another"
        )
