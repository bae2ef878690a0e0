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
from vram.errors import CannotRecord, VramError
from vram.files import new_file
from vram.model.plan import Target
from vram.payloads.procfs import started_at
from vram.reach.deadline import run_with_deadline
from vram.reach.target_root import open_entry, open_files
from vram.units import size

_LOOKING_S = 5.0
_MAX_FILES = 200
_COPIED_AT_ONCE = 1 << 20


class Elsewhere(Struct, frozen=True):
    """Where a trace was recorded: the boot, what files its process saw, and that process, as we see it."""

    boot: str
    files: tuple[int, str]
    """The mount namespace, and the root in it as we see it."""
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


def _files_of(pid: int | str) -> tuple[int, str]:
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino, os.readlink(f"/proc/{pid}/root")


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
        """Copy it to *path*, and remove it there. Raises UsageError where *path* cannot be written.

        Raises CannotRecord where it would take most of the room here: its process may make it endless.
        """
        pid, about = self.target.process.pid, os.fstat(self._file)
        room = os.statvfs(os.path.dirname(path) or ".")
        free = room.f_bavail * room.f_frsize
        if about.st_size > free // 2:
            raise CannotRecord(
                f"the trace {self.path} of pid {pid} has {size(about.st_size)}; {size(free)} are free here",
                hint="copy it out of its container, or bring it to another file system with -o",
            )
        with new_file(path) as stream:
            at = 0
            while part := os.pread(self._file, min(_COPIED_AT_ONCE, about.st_size - at), at):
                stream.write(part)
                at += len(part)
        with suppress(VramError):
            run_with_deadline(
                _LOOKING_S, pid, self.target.uid, lambda: _remove(pid, self.path, about.st_dev, about.st_ino)
            )

    def close(self) -> None:
        os.close(self._file)


def _remove(pid: int, path: str, device: int, inode: int) -> None:
    """Remove the very file that was copied, where it still lies there; in a child that may be abandoned."""
    with suppress(OSError):
        folder = open_entry(pid, os.path.dirname(path), os.O_DIRECTORY)
        try:
            about = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
            if (about.st_dev, about.st_ino) == (device, inode):
                os.unlink(os.path.basename(path), dir_fd=folder)
        finally:
            os.close(folder)
