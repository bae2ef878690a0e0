"""Files as another process sees them: below its root, whatever links lie on the way.

The process may be a hostile container's. A path is resolved by the kernel as if its root were ours
(openat2(2), RESOLVE_IN_ROOT), so no link and no ".." leads out; magic links, as in /proc, are refused.
What is found is judged before it is opened: a pipe, a device or a socket never is. A file system that its
user made may keep a reader waiting for ever: so files are looked up by a child of ours that can be abandoned,
and those on a FUSE file system are not read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from vram.children import interpreter, start
from vram.files import open_plain

_OPENAT2 = 437  # on every machine
_HOW = struct.Struct("<3Q")
_NO_MAGIC_LINKS, _BENEATH, _IN_ROOT = 0x02, 0x08, 0x10
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_CLOEXEC
_FUSE = 0x65735546  # of fstatfs
_NUMBER = struct.Struct("<I")
_ENDING_S = 0.2


def sees_our_files(pid: int) -> bool:
    """Whether a path means the same file to *pid* as to us: our mount namespace, and our root in it."""
    try:
        ours, theirs = (os.stat(f"/proc/{each}/ns/mnt").st_ino for each in ("self", pid))
        # A link of /proc is read without asking the file system that it leads to, which may be its user's.
        if ours != theirs or os.readlink(f"/proc/{pid}/root") != "/":
            return False
        here, there = os.stat("/"), os.stat(f"/proc/{pid}/root")  # of us, it may be, in a chroot
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


def open_files(pid: int, paths: Sequence[str], seconds: float) -> dict[str, int]:
    """Descriptors for reading the plain files that *paths* mean to *pid*, as far as there are any in time."""
    child = start(
        lambda pipe: _send_files(pipe, pid, paths),
        interpreter("vram.reach.target_root", str(pid), *paths),
        link="packets",
    )
    found: dict[str, int] = {}
    until = time.monotonic() + seconds
    try:
        poll = select.poll()
        poll.register(child.pipe, select.POLLIN)
        with socket.socket(fileno=os.dup(child.pipe)) as link:
            while poll.poll(max(0.0, until - time.monotonic()) * 1000):
                said, files, _, _ = socket.recv_fds(link, _NUMBER.size, 1, socket.MSG_CMSG_CLOEXEC)
                if not files:
                    break
                found[paths[_NUMBER.unpack(said)[0]]] = files[0]
    finally:
        child.hang_up()
        child.end(_ENDING_S)
    return found


def _send_files(pipe: int, pid: int, paths: Sequence[str]) -> None:
    """In the child: each file with its number; a packet without one ends them."""
    with socket.socket(fileno=pipe) as link:
        for number, path in enumerate(paths):
            with suppress(OSError, ValueError):
                file = _open_file(pid, path)
                socket.send_fds(link, [_NUMBER.pack(number)], [file])
                os.close(file)
        link.send(b".")


def _open_file(pid: int, path: str) -> int:
    entry = open_entry(pid, path)
    try:
        if _file_system(entry) == _FUSE:
            raise OSError(errno.EOPNOTSUPP, "on a FUSE file system", path)
        return open_plain(f"/proc/self/fd/{entry}")
    finally:
        os.close(entry)


def _file_system(file: int) -> int:
    found = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(file, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int.from_bytes(found.raw[:8], "little")


def main() -> None:
    """The child where a fork is not safe; descriptor 3 leads to its parent."""
    _send_files(3, int(sys.argv[1]), sys.argv[2:])


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
