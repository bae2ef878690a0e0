"""A process that sees other files than we do, as in a container: its trace, and the libraries that it names.

The trace lies in its file system until it is brought here. Its libraries are read there too, and never the
files of the same names here. The process decides what lies under a name: it is resolved in its own root, must
be a plain file, and not on a file system that a user makes, which might never answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, json

from vram import untrusted
from vram.errors import CannotRecord
from vram.files import new_file
from vram.model.plan import Target
from vram.payloads.procfs import started_at
from vram.reach.target_root import open_entry, open_files

_LOOKING_S = 5.0
_MAX_FILES = 200
_COPIED_AT_ONCE = 1 << 20


class Elsewhere(Struct, frozen=True):
    """Where a trace was recorded: the boot, what files its process saw, and that process, as we see it."""

    boot: str
    files: tuple[int, int, int]
    """The mount namespace, and the device and inode of the root in it."""
    pid: int
    started_at: int

    @property
    def is_here(self) -> bool:
        """Whether the files of the trace are those that we see."""
        return self._is_this_boot and self.files == _files_of("self")

    def open_files(self, paths: Sequence[str]) -> dict[str, int]:
        """Descriptors of those of *paths* that can be read there; none when the process has ended."""
        if not self._lives():
            return {}
        found = open_files(self.pid, paths[:_MAX_FILES], _LOOKING_S)
        if self._lives():  # and so it did meanwhile
            return found
        for each in found.values():
            os.close(each)
        return {}

    @property
    def _is_this_boot(self) -> bool:
        return self.boot == _boot()

    def _lives(self) -> bool:
        with suppress(OSError):
            is_there = started_at(self.pid) == self.started_at and self.files == _files_of(self.pid)
            return self._is_this_boot and is_there
        return False


def describe(pid: int) -> str:
    """What a trace of *pid* says of it, for :func:`read`."""
    return json.encode(Elsewhere(_boot(), _files_of(pid), pid, started_at(pid) or 0)).decode()


def read(text: bytes) -> Elsewhere | None:
    """What :func:`describe` has written; None for anything else."""
    try:
        return untrusted.decode(text, Elsewhere, most_items=10)
    except untrusted.Rejected:
        return None


def _files_of(pid: int | str) -> tuple[int, int, int]:
    namespace, root = os.stat(f"/proc/{pid}/ns/mnt"), os.stat(f"/proc/{pid}/root")
    return namespace.st_ino, root.st_dev, root.st_ino


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


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
