"""Folders that no other user can change: reached from the root down, one component after the other.

A user who can write to one folder on the way to a file decides what is found there. So each component is
opened without following links, and its owner and mode are compared before the next one is looked up in it.
Everything that is wrong is an OSError whose ``strerror`` names the component, and why it is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

PRIVATE = 0o700
MAX_LINKS = 40  # as many as the kernel follows

_OTHERS_WRITE, _GROUP_WRITES = 0o002, 0o020
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_private(path: str, *, make: bool) -> int:
    """Return a descriptor of *path*, a folder of this user with mode 0700; with *make*, made where missing.

    Every folder on the way must belong to this user or root. One that others may write to must be sticky,
    as /tmp is: there only its owner can rename what comes next.
    """
    here, missing = nearest(path)
    try:
        while missing and make:
            with suppress(FileExistsError):
                os.mkdir(missing[0], PRIVATE, dir_fd=here)
            left = len(missing)
            os.close(here)
            # Walked again: what lies there now need not be what was made.
            here, missing = nearest(path)
            if len(missing) >= left:
                break
        if missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        _require_private(here, path)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def nearest(path: str) -> tuple[int, list[str]]:
    """Walk towards *path*, which is absolute: a descriptor of the last folder that is there, and the names
    below it that are missing. Where none is, that is *path* itself, and yet to be judged.

    Links on the way are followed where only this user or root can have made them; *path* itself is none.
    """
    names, links = parts(path), 0
    here, shown = os.open("/", FOLDER), "/"
    try:
        _require_unchangeable(here, shown)
        while names:
            try:
                entry = os.open(names[0], ENTRY, dir_fd=here)
            except FileNotFoundError:
                return here, names
            name = names.pop(0)
            whole, about = os.path.join(shown, name), os.fstat(entry)
            if not stat.S_ISLNK(about.st_mode):
                os.close(here)
                here, shown = entry, whole
                if names:
                    _require_unchangeable(here, shown)
                continue
            try:
                links += 1
                if not names or links > MAX_LINKS:
                    raise OSError(errno.ELOOP, f"{whole} is a link", whole)
                _require_trusted_owner(about, f"the link {whole}")
                target = os.readlink("", dir_fd=entry)
            finally:
                os.close(entry)
            names[:0] = parts(target)
            if target.startswith("/"):
                os.close(here)
                here, shown = os.open("/", FOLDER), "/"
        return here, names
    except BaseException:
        os.close(here)
        raise


def parts(path: str) -> list[str]:
    """The names on the way of *path*."""
    return [name for name in path.split("/") if name not in ("", ".")]


def home() -> str:
    """Our own home folder: `sudo` may leave HOME pointing at another user's."""
    said = os.environ.get("HOME", "")
    with suppress(OSError):
        if os.path.isabs(said) and os.stat(said).st_uid == os.geteuid():
            return said
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return said or "/nonexistent"


def state_path() -> str:
    """Where this user's programs keep their state: $XDG_STATE_HOME, or ~/.local/state."""
    said = os.environ.get("XDG_STATE_HOME", "")
    # A relative path would depend on where vram is started from; the standard says to ignore it.
    return said if os.path.isabs(said) else os.path.join(home(), ".local", "state")


def is_ours_alone(folder: int) -> bool:
    """Whether only this user and root can change what lies in *folder*."""
    about = os.fstat(folder)
    return is_trusted_owner(about.st_uid) and not others_may_write(folder, about)


def is_trusted_owner(uid: int) -> bool:
    """Whether *uid* is ours or root's."""
    return uid == os.geteuid() or is_root(uid)


def is_root(uid: int) -> bool:
    """Whether *uid* is root, as far as our user namespace shows that."""
    return uid == 0 or (uid == _overflow_uid() and not _is_mapped(uid))


def others_may_write(folder: int, about: os.stat_result) -> bool:
    """Whether others than its owner may write to *folder*; a group of its owner alone does not count."""
    if about.st_mode & _OTHERS_WRITE:
        return True
    return bool(about.st_mode & _GROUP_WRITES) and not _is_owners_own_group(folder, about)


def _is_owners_own_group(folder: int, about: os.stat_result) -> bool:
    """Many systems give each user a group of the same name, and let it write to all that the user makes."""
    import grp
    import pwd

    with suppress(OSError):
        # With access control lists the mode's group bits stand for others' rights as well.
        if "system.posix_acl_access" in os.listxattr(f"/proc/self/fd/{folder}"):
            return False
    try:
        owner, group = pwd.getpwuid(about.st_uid), grp.getgrgid(about.st_gid)
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {owner.pw_name}
    return alone and (group.gr_gid, group.gr_name) == (owner.pw_gid, owner.pw_name)


def _require_unchangeable(folder: int, path: str) -> None:
    about = os.fstat(folder)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder", path)
    _require_trusted_owner(about, path)
    if not about.st_mode & stat.S_ISVTX and others_may_write(folder, about):
        mode = stat.S_IMODE(about.st_mode)
        raise _refusal(path, f"others can change what lies in {path}, its mode is {mode:04o}")


def _require_trusted_owner(about: os.stat_result, what: str) -> None:
    if not is_trusted_owner(about.st_uid):
        raise _refusal(what, f"others can change {what}, it belongs to {owner_name(about.st_uid)}")


def _require_private(folder: int, path: str) -> None:
    about = os.fstat(folder)
    mode = stat.S_IMODE(about.st_mode)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder", path)
    if about.st_uid != os.geteuid():
        raise _refusal(path, f"{path} is not yours alone, it belongs to {owner_name(about.st_uid)}")
    if mode & 0o077:
        raise _refusal(path, f"{path} is not yours alone, its mode is {mode:04o} and should be 0700")


def _refusal(path: str, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, path)


def owner_name(uid: int) -> str:
    """The name of *uid*, or its number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _overflow_uid() -> int:
    return _number_in("/proc/sys/kernel/overflowuid") or 65534


def _is_mapped(uid: int) -> bool:
    """Whether *uid* names a user in our user namespace. Where it does not, as where a container maps
    one user alone, it is what the kernel shows instead of root and of all others."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [tuple(int(word) for word in line.split()) for line in file]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in ranges)


def _number_in(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
