"""A trace that a process wrote into its own file system, as in a container, and how it is brought here.

The process decides what lies under that name. It is resolved in its own root, must be a plain file, and not
on a file system that a user makes, which might never answer.
"""

from __future__ import annotations

import os
from contextlib import suppress

from vram.errors import CannotRecord
from vram.files import new_file
from vram.model.plan import Target
from vram.reach.target_root import open_entry, open_files

_LOOKING_S = 5.0
_COPIED_AT_ONCE = 1 << 20


class TraceElsewhere:
    """One trace, held open: it can be brought here when its process has ended, too."""

    def __init__(self, target: Target, path: str) -> None:
        """*path* is what *target* calls it. Raises CannotRecord where it cannot be brought here."""
        self.target, self.path = target, path
        found = open_files(target.process.pid, [path], _LOOKING_S)
        if path not in found:
            raise CannotRecord(
                f"the trace {path} of pid {target.process.pid} cannot be brought here: it is no plain file,"
                " or on a FUSE file system",
                hint="copy it out of its container",
            )
        self._file = found[path]

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
