"""Files as another process sees them: below its root, whatever links lie on the way.

The process may be a hostile container's. A path is resolved by the kernel as if its root were ours
(openat2(2), RESOLVE_IN_ROOT), so no link and no ".." leads out; magic links, as in /proc, are refused.
What is found is judged before it is opened: a pipe, a device or a socket never is. A file system may still
keep a reader waiting for ever: that is for the caller's deadline (:mod:`vram.reach.deadline`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from vram import files

_OPENAT2 = 437  # on every machine
_HOW = struct.Struct("<3Q")
_NO_MAGIC_LINKS, _BENEATH, _IN_ROOT = 0x02, 0x08, 0x10
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_CLOEXEC


def sees_our_files(pid: int) -> bool:
    """Whether a path means the same file to *pid* as to us: our mount namespace, and our root in it."""
    try:
        ours, theirs = (os.stat(f"/proc/{each}/ns/mnt").st_ino for each in ("self", pid))
        if ours != theirs:
            return False
        here, there = os.stat("/"), os.stat(f"/proc/{pid}/root")
    except OSError:
        return True  # it has ended, or may not be read: then nothing is done with it
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def open_entry(pid: int, path: str, flags: int = 0) -> int:
    """A descriptor that only identifies what *path* means to *pid*. Raises OSError."""
    # A relative path begins at its working folder, which may lie outside of its root.
    root = os.open(f"/proc/{pid}/{'root' if path.startswith('/') else 'cwd'}", _FOLDER)
    try:
        resolve = _NO_MAGIC_LINKS | (_IN_ROOT if path.startswith("/") else _BENEATH)
        return _openat2(root, path, _ENTRY | flags, resolve)
    finally:
        os.close(root)


def open_file(pid: int, path: str) -> int:
    """A descriptor for reading the plain file that *path* means to *pid*. Raises OSError for all else."""
    entry = open_entry(pid, path)
    try:
        return files.open_plain(f"/proc/self/fd/{entry}")
    finally:
        os.close(entry)


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    how = ctypes.create_string_buffer(_HOW.pack(flags, 0, resolve), _HOW.size)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel asks for another try where a folder was moved meanwhile.
    for _ in range(16):
        file: int = libc.syscall(_OPENAT2, folder, os.fsencode(path), how, _HOW.size)
        if file >= 0:
            return file
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
