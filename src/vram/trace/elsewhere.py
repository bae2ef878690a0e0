"""A trace that a process wrote into its own file system, as in a container, and how it is brought here.

The process decides what lies under that name. It is resolved in its own root, must be a plain file, and not
on a file system that a user makes, which might never answer.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from vram.errors import CannotRecord, NotReachable
from vram.files import new_file
from vram.model.plan import Target
from vram.reach.deadline import run_with_deadline
from vram.reach.target_root import open_entry, open_file

_LOOKING_S = 5.0
_FUSE = 0x65735546
_COPIED_AT_ONCE = 1 << 20


class TraceElsewhere:
    """One trace, held open: it can be brought here when its process has ended, too."""

    def __init__(self, target: Target, path: str) -> None:
        """*path* is what *target* calls it. Raises CannotRecord where it cannot be brought here."""
        self.target, self.path = target, path
        pid = self.target.process.pid
        try:
            run_with_deadline(_LOOKING_S, pid, self.target.uid, lambda: _require_answering(pid, self.path))
            self._file = open_file(pid, self.path)
        except OSError as error:
            raise CannotRecord(
                f"the trace {self.path} of pid {pid} cannot be brought here: {error.strerror or error}",
                hint="copy it out of its container",
            ) from error

    def bring(self, path: str) -> None:
        """Copy it to *path*, and remove it there. Raises UsageError where *path* cannot be written."""
        with new_file(path) as stream:
            at = 0
            while part := os.pread(self._file, _COPIED_AT_ONCE, at):
                stream.write(part)
                at += len(part)
        self._remove()

    def close(self) -> None:
        os.close(self._file)

    def _remove(self) -> None:
        """The very file, where it still lies there."""
        with suppress(OSError):
            folder = open_entry(self.target.process.pid, os.path.dirname(self.path), os.O_DIRECTORY)
            try:
                name = os.path.basename(self.path)
                about, ours = os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(self._file)
                if (about.st_dev, about.st_ino) == (ours.st_dev, ours.st_ino):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)


def _require_answering(pid: int, path: str) -> None:
    """In a child that may be abandoned: a user's file system is asked nothing but there."""
    try:
        entry = open_entry(pid, path)
        try:
            kind = _file_system(entry)
        finally:
            os.close(entry)
    except OSError as error:
        raise NotReachable(f"{path}: {error.strerror}") from error
    if kind == _FUSE:
        raise CannotRecord(
            f"the trace {path} of pid {pid} lies on a FUSE file system, which may never answer",
            hint="copy it out of its container",
        )


def _file_system(file: int) -> int:
    found = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(file, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int.from_bytes(found.raw[:8], "little")
