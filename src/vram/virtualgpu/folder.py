"""The private folder of a virtual GPU: made so that no other user can have prepared it.

Its maker holds a lock on it while it lives (the kernel drops the lock with the process). An
unlocked folder was left by a maker that was killed: the next one removes it, unless a process still
runs in it or it was meant to stay.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vram.errors import VirtualGpuError
from vram.installation import how_to_get_native
from vram.units import GIB
from vram.virtualgpu import FOLDER_VARIABLE

PREFIX = "vram-virtual-"
KEPT = "kept"

# Device bytes lie in this folder's files once touched. Memory is faster than a disk, but the
# 64 MiB that containers get for shared memory are soon full, and a full one kills with SIGBUS.
SHARED_MEMORY = "/dev/shm"
ROOM_WANTED = GIB

BUILT = Path(__file__).with_name("lib")

# Some programs (Numba among them) try the name without a version first: on a machine with a
# real driver that name would lead past the virtual one.
_VERSIONS = {"libcuda": (1,), "libnvidia-ml": (1,), "libcudart": (12, 13), "libcupti": (12, 13)}
LIBRARIES = {
    name: f"{library}.so.{version}"
    for library, versions in _VERSIONS.items()
    for version in versions
    for name in (f"{library}.so.{version}", f"{library}.so")  # the newest has the name without a version
}


def make(path: str | os.PathLike[str] | None = None) -> Path:
    """Make a folder of mode 0700: at *path*, or under a name that could not be foreseen."""
    if path is not None:
        return _make_at(Path(path))
    parent = _parent() or tempfile.gettempdir()
    remove_abandoned(Path(parent))
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise VirtualGpuError(
            f"no folder can be made for the virtual GPU: {error.strerror}",
            hint="set TMPDIR to a folder that you can write to",
        ) from error


def check(path: str | os.PathLike[str]) -> Path:
    """Return *path* if it is a virtual GPU's folder, of this user alone."""
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


# ---- the compiled libraries in it ----


def link_libraries(folder: Path, built: Path = BUILT) -> None:
    """Make *folder* one that a loader can search, with every name the driver goes by."""
    folder.mkdir()
    for name, library in LIBRARIES.items():
        target = built / library
        if not target.exists():
            raise VirtualGpuError(
                f"the virtual GPU's {library} has not been built",
                hint=how_to_get_native(),
            )
        (folder / name).symlink_to(target)


RUNTIMES = ("libcudart.so.13", "libcudart.so.12")


def with_runtimes(preload: str, built: Path = BUILT) -> str:
    """The LD_PRELOAD *preload* with the virtual GPU's runtime libraries after what is in it.

    PyTorch's libraries have an RPATH that leads to NVIDIA's runtime, searched before LD_LIBRARY_PATH.
    A library that is loaded already under the same name is used instead of either. The paths are not those in
    a virtual GPU's folder: programs may outlive it, and the loader complains of a file that is gone. Loading
    both takes 0.1 ms; they do nothing until a program calls them.
    """
    ours = [str(built / name) for name in RUNTIMES]
    # The loader takes spaces and colons for separators, and knows no way to quote them.
    if any(set(path) & set(" :\t\n") for path in ours):
        ours = list(RUNTIMES)
    others = [path for path in re.split("[ :]+", preload) if path and Path(path).name not in RUNTIMES]
    return ":".join([*others, *ours])


# ---- who made it, and what a killed maker left ----


def lock(folder: Path) -> int | None:
    """Take the lock that says "its maker lives"; None where another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in *parent* that killed makers left. What cannot be read is left alone."""
    locks: dict[Path, int | None] = {}
    for folder in parent.glob(f"{PREFIX}*"):
        if _may_be_abandoned(folder):
            with suppress(OSError):
                locks[folder] = lock(folder)
    # Only for those without a maker: the environment of every process is read for it.
    in_use = set(_folders_in_use()) if any(each is not None for each in locks.values()) else set()
    for folder, descriptor in locks.items():
        if descriptor is not None:
            if str(folder) not in in_use and not (folder / KEPT).exists():
                shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _may_be_abandoned(folder: Path) -> bool:
    # The config is written after the lock is taken: a folder without one may be in the making.
    try:
        found = set(os.listdir(folder))
        return folder.lstat().st_uid == os.geteuid() and found >= {"config", "dev"} and KEPT not in found
    except OSError:
        return False


def _folders_in_use() -> Iterator[str]:
    """The folders that running processes of ours were started with."""
    variable = f"{FOLDER_VARIABLE}=".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(variable):
                yield os.fsdecode(entry.removeprefix(variable))
