"""Whether root installed the program that a process runs, under the path that the kernel shows for it.

The path alone proves nothing. In a user and a mount namespace of its own anybody may mount any file of
root's over /usr/bin/login and run it there, or hand it, opened, to a process outside, to be executed there.
So it is asked whose the file is, and in which mount namespace its path was found.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from vram.folders import is_root

if TYPE_CHECKING:
    from vram.payloads.procfs import ProcessFolder

_OTHERS_WRITE, _GROUP_WRITES = 0o002, 0o020


def is_installed_by_root(folder: ProcessFolder, inside: str, path: str, uid: int | None) -> bool | None:
    """Judge the program of the process in *folder*, which runs as *uid*; None where it cannot be read.

    The file must be root's, closed to changes by others, and one of these must hold:

    - it was found where only root mounts: in our own mount namespace, or in that of the first process;
    - it is the very file that we have under that path, as with services that systemd shields from others;
    - the process is root's own, in our user namespace, as the services of a cluster in containers are.
    """
    file = folder.open(f"{inside}exe")
    if file is None:
        return None
    try:
        # Asked while the file is open: until then its mount cannot go, nor its number be another's.
        file_system = _file_system_among_roots_mounts(_mount_of(file))
        if file_system and file_system.startswith(b"fuse"):
            return False  # what it says of owners is the word of whoever serves it, and it may never answer
        about = os.fstat(file)
    except OSError:
        return False
    finally:
        os.close(file)
    if not _is_roots_alone(about):
        return False
    runs_as_root = uid == 0 and _is_our_user_namespace(folder.about(f"{inside}ns/user"))
    return file_system is not None or _is_the_file_at(path, about) or runs_as_root


def _is_roots_alone(about: os.stat_result) -> bool:
    by_group = about.st_mode & _GROUP_WRITES and about.st_gid != 0
    return is_root(about.st_uid) and not by_group and not about.st_mode & _OTHERS_WRITE


def _is_the_file_at(path: str, about: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(about, os.stat(path))
    return False


def _is_our_user_namespace(namespace: os.stat_result | None) -> bool:
    return namespace is not None and os.path.samestat(namespace, os.stat("/proc/self/ns/user"))


def _mount_of(file: int) -> int:
    """The number of the mount that *file* was found in; no other mount has it."""
    with open(f"/proc/self/fdinfo/{file}", encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)


def _file_system_among_roots_mounts(mount: int) -> bytes | None:
    """The kind of file system where nobody but root can have made *mount*; None elsewhere.

    The first process's namespace is another than ours where vram runs in a container and sees the machine.
    """
    found = _file_system("/proc/self/mountinfo", mount)
    with suppress(OSError):  # it is not everybody's to read
        if found is None and _is_our_user_namespace(os.stat("/proc/1/ns/user")):
            return _file_system("/proc/1/mountinfo", mount)
    return found


def _file_system(path: str, mount: int) -> bytes | None:
    with open(path, "rb") as lines:
        line = next((line for line in lines if line.startswith(b"%d " % mount)), None)
    return line and line.partition(b" - ")[2].partition(b" ")[0]
