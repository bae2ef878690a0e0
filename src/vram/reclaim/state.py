"""The private folder for what must survive us: made for one user, and trusted only while it is."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from vram.errors import AuditUnavailable

PRIVATE = 0o700
_WRITABLE_BY_OTHERS = 0o022


def folder_path() -> str:
    """Where it lies: $XDG_STATE_HOME/vram, or ~/.local/state/vram."""
    said = os.environ.get("XDG_STATE_HOME", "")
    # A relative path would depend on where vram is started from; the standard says to ignore it.
    base = said if os.path.isabs(said) else os.path.join(_home(), ".local", "state")
    return os.path.join(base, "vram")


def has_parked() -> bool:
    """Whether the journal of parked processes may have entries; nothing is made by asking."""
    try:
        return any(name.startswith("parked-") for name in os.listdir(folder_path()))
    except OSError:
        return False


def open_folder() -> int:
    """Return a descriptor of the folder, made where it is missing.

    Raises AuditUnavailable where it is a link, somebody else's, open to others, or cannot be made.
    """
    path = folder_path()
    try:
        with suppress(FileExistsError):
            os.makedirs(os.path.dirname(path), mode=PRIVATE)
        _require_ours(os.stat(os.path.dirname(path)), os.path.dirname(path), owners=(os.geteuid(), 0))
        with suppress(FileExistsError):
            os.mkdir(path, PRIVATE)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise AuditUnavailable(
            f"the folder for vram's records cannot be used: {path}: {error.strerror}",
            hint="make it a folder of yours alone, or set XDG_STATE_HOME",
        ) from error
    try:
        _require_ours(os.fstat(folder), path, owners=(os.geteuid(),), open_to_others=0o077)
    except BaseException:
        os.close(folder)
        raise
    return folder


def why_unusable() -> AuditUnavailable | None:
    """Why nothing could be written there; None where it could. Nothing is made by asking."""
    path = folder_path()
    if os.path.lexists(path):
        try:
            os.close(open_folder())
        except AuditUnavailable as error:
            return error
        return None if os.access(path, os.W_OK | os.X_OK) else _unwritable(path)
    above = _nearest_existing(path)
    return None if os.access(above, os.W_OK | os.X_OK) else _unwritable(above)


def free_bytes() -> int | None:
    """Room on the disk that the folder lies on, or would lie on, for us."""
    try:
        disk = os.statvfs(_nearest_existing(folder_path()))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _nearest_existing(path: str) -> str:
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _unwritable(path: str) -> AuditUnavailable:
    return AuditUnavailable(
        f"the folder for vram's records cannot be written: {path}",
        hint="set XDG_STATE_HOME to a folder of your own, with mode 0700",
    )


def open_file(name: str, flags: int) -> int:
    """Open *name* in the folder: a plain file of ours, with one name and closed to others."""
    folder = open_folder()
    path = os.path.join(folder_path(), name)
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError as error:
        raise AuditUnavailable(
            f"{path} cannot be opened: {error.strerror}", hint="look who made it; vram follows no link here"
        ) from error
    finally:
        os.close(folder)
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
        return file
    os.close(file)
    raise AuditUnavailable(f"{path} is not a plain file of yours alone", hint="move it away")


def _require_ours(
    about: os.stat_result, path: str, *, owners: tuple[int, ...], open_to_others: int = _WRITABLE_BY_OTHERS
) -> None:
    shared = about.st_mode & open_to_others and not about.st_mode & stat.S_ISVTX
    if about.st_uid not in owners or shared:
        raise AuditUnavailable(
            f"{path} is not yours alone: others could have prepared it, or could change it",
            hint="set XDG_STATE_HOME to a folder of your own, with mode 0700",
        )


def _home() -> str:
    """Our own home: `sudo` may leave HOME pointing at somebody else's."""
    said = os.environ.get("HOME", "")
    with suppress(OSError):
        if os.path.isabs(said) and os.stat(said).st_uid == os.geteuid():
            return said
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return said or "/nonexistent"
