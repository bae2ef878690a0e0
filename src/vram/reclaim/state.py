"""The private folder for what must survive us: made for one user, and used only while it is private."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from vram import folders
from vram.errors import AuditUnavailable

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.process import ParkedProcess

_HINT = "make it a folder that only you can access (mode 0700), or set XDG_STATE_HOME to one"

SYSTEM_FOLDER = "/var/lib/vram"
"""Where root's service keeps its state, unless it is told another place."""

_chosen: str | None = None


def use_folder(path: str | None) -> None:
    """Let this process keep its state in *path* from now on: a service is told where. None: as usual."""
    global _chosen
    _chosen = path


def folder_path() -> str:
    """Where it lies: $XDG_STATE_HOME/vram, or ~/.local/state/vram, unless use_folder() said another."""
    return _chosen or os.path.join(folders.state_path(), "vram")


def folder_paths() -> tuple[str, ...]:
    """Where the vrams of this user may have left something: ours first. The service's worker has none of the
    user's environment, and root's service a folder of its own."""
    home = os.path.join(folders.home(), ".local", "state")
    found = [folder_path(), *(os.path.join(each, "vram") for each in (folders.state_path(), home))]
    return tuple(dict.fromkeys(found + ([SYSTEM_FOLDER] if os.geteuid() == 0 else [])))


def has_parked() -> bool:
    """Whether the journal of parked processes has entries; nothing is made by asking."""
    try:
        folder = folders.open_private(folder_path(), make=False)
    except OSError:
        return False
    try:
        return any(name.startswith("parked-") for name in os.listdir(folder))
    finally:
        os.close(folder)


def parked(host: Host) -> tuple[ParkedProcess, ...]:
    """What this user has parked: nearly always nothing, and then nothing more is loaded."""
    if not has_parked():
        return ()
    from vram.reclaim.journal import parked_now

    return parked_now(host)


def open_folder() -> int:
    """Return a descriptor of the folder, made where it is missing.

    Raises AuditUnavailable where it, or a folder on the way to it, is another user's or open to others,
    and where it cannot be made.
    """
    try:
        return folders.open_private(folder_path(), make=True)
    except OSError as error:
        raise _unusable(error) from error


def why_unusable() -> AuditUnavailable | None:
    """Why nothing could be written there; None where it could. Nothing is made by asking."""
    path = folder_path()
    try:
        folder, missing = folders.nearest(path)
        if not missing:
            os.close(folder)
            folder = folders.open_private(path, make=False)
    except OSError as error:
        return _unusable(error)
    try:
        if os.access(f"/proc/self/fd/{folder}", os.W_OK | os.X_OK):
            return None
        return AuditUnavailable(
            f"vram's state folder is not writable: {os.readlink(f'/proc/self/fd/{folder}')}",
            hint=_HINT,
        )
    finally:
        os.close(folder)


def free_bytes() -> int | None:
    """Room on the disk that the folder lies on, or would lie on, for us."""
    try:
        folder, _ = folders.nearest(folder_path())
    except OSError:
        return None
    try:
        disk = os.statvfs(f"/proc/self/fd/{folder}")
    finally:
        os.close(folder)
    return disk.f_bavail * disk.f_frsize


def open_file(name: str, flags: int) -> int:
    """Open *name* in the folder: a plain file of ours, with one name and closed to others."""
    folder = open_folder()
    path = os.path.join(folder_path(), name)
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError as error:
        raise AuditUnavailable(
            f"cannot open {path}: {error.strerror}",
            hint="check who created it; vram does not follow links here",
        ) from error
    finally:
        os.close(folder)
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
        return file
    os.close(file)
    raise AuditUnavailable(f"{path} is not a regular file that only you can access", hint="move it away")


def _unusable(error: OSError) -> AuditUnavailable:
    reason = f"vram's state folder cannot be used: {folder_path()}: {error.strerror}"
    return AuditUnavailable(reason, hint=_HINT)
