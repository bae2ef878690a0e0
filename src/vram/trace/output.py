"""The files of a trace: where it goes, what each process wrote, and one file of all of them.

The process PID writes ``NAME.PID.part``. At the end one part becomes NAME, several are joined into it. What
was written is never changed, so a part is readable at every moment, also after its process was killed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from vram.errors import UsageError
from vram.files import open_plain
from vram.payloads.procfs import ProcessFolder, started_at

SUFFIX = ".part"
MAGIC = b"VRAMTRAC"
# Header page (native/FORMAT.md): magic, versions, lengths, pid, clocks, start time, parent, how recording
# began, stacks, flags, run.
HEADER = struct.Struct("<8s2H3I3Q4I16s")
_PAGE = 4096
_COPIED_AT_ONCE = 1 << 30
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Of link(): the file system has none, or does not allow them.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class TracePart(Struct, frozen=True):
    """What one process wrote, by the header of its file."""

    path: str
    pid: int
    started_at: int
    monotonic_ns: int
    run: str
    nbytes: int

    @property
    def is_written(self) -> bool:
        """Whether its process still runs, and so may write more."""
        return started_at(self.pid) == self.started_at


class Collected(Struct, frozen=True):
    """What became of the parts: the trace, those that still grow, and why others were left as they are."""

    trace: str | None
    growing: tuple[TracePart, ...] = ()
    left: tuple[TracePart, ...] = ()
    reason: str = ""


def default_name(program: str, pid: int) -> str:
    """The name of a trace for which the user gave none, in the working folder."""
    plain = re.sub(r"[^\w.+-]", "_", os.path.basename(program)).lstrip(".")[:60]
    plain = plain.encode()[:120].decode(errors="ignore")  # a letter may have four bytes, a name 255
    return f"vram-trace-{plain or 'command'}-{pid}.vram"


def unused_name(program: str, pid: int) -> str:
    """As :func:`default_name`, with a number where a trace of that name is there already."""
    name = first = default_name(program, pid)
    number = 2
    while os.path.lexists(name):
        name = f"{first.removesuffix('.vram')}-{number}.vram"
        number += 1
    return name


def absolute(path: str) -> str:
    """*path* made absolute; raises UsageError where that is no file's."""
    if path == "-":
        raise UsageError("a trace cannot go to standard output", hint="name a file: -o trace.vram")
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        raise UsageError(
            "the working folder does not exist any more", hint="name the trace with its whole path: -o FILE"
        ) from error


def require_writable(path: str, *, force: bool) -> str:
    """*path* made absolute, if a trace can be written there; raises UsageError where not."""
    where = absolute(path)
    folder, name = os.path.split(where)
    if not name or path.endswith("/"):
        raise UsageError(f"{path} is a folder, not a file", hint="name a file in it: -o FOLDER/trace.vram")
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", hint="create it, or choose another file with -o")
    if os.path.isdir(where):
        raise UsageError(f"{path} is a folder, not a file", hint=f"name a file in it: -o {path}/trace.vram")
    if os.path.lexists(where) and not force:
        raise UsageError(f"{path} exists already", hint="choose another file with -o, or replace it: --force")
    if os.path.lexists(where) and not stat.S_ISREG(os.lstat(where).st_mode):
        raise UsageError(f"{path} is not a regular file", hint="choose another file with -o")
    # By trying: rights, read-only file systems and quotas are known to the kernel alone.
    # As long as the longest name of a part: a pid has up to seven digits, and -999 may follow.
    trial = f"{where}.{os.urandom(6).hex()}.new"
    try:
        os.close(os.open(trial, _NEW, 0o600))
        os.unlink(trial)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{path} is too long a name: while a process writes it, more is added",
                hint="choose a shorter one with -o",
            ) from error
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}", hint="choose another file with -o"
        ) from error
    return where


def read_part(path: str) -> TracePart | None:
    """The part at *path*; None where it is none, or not a file of ours."""
    try:
        file = open_plain(path, os.O_NOFOLLOW)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(file)
        header = os.pread(file, HEADER.size, 0)
    except OSError:
        return None
    finally:
        os.close(file)
    if about.st_uid != os.geteuid() and os.geteuid() != 0:
        return None
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        return None
    _, _, _, _, _, pid, _, monotonic, began, _, _, _, _, run = HEADER.unpack(header)
    return TracePart(path, pid, began, monotonic, run.hex(), about.st_size)


def parts(output: str, run: str) -> list[TracePart]:
    """The parts of *run* at *output*, in the order in which they were begun. Others' are left out."""
    folder, name = os.path.split(output)
    found = []
    with suppress(OSError):
        for each in os.listdir(folder):
            if each.startswith(f"{name}.") and each.endswith(SUFFIX):
                part = read_part(os.path.join(folder, each))
                if part is not None and part.run == run:
                    found.append(part)
    return sorted(found, key=lambda part: (part.monotonic_ns, part.path))


def recorded_into(pid: int) -> str | None:
    """The trace that *pid* writes, by the files that it has open; None where there is none to be seen."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            links = {folder.link(f"fd/{name}") for name in folder.names("fd")}
    except OSError:
        return None
    # Sockets and pipes have no path. One that has ended may still be open: the newest is meant.
    found = [read_part(os.fsdecode(link)) for link in links if link is not None and link.startswith(b"/")]
    own = [part for part in found if part is not None and part.pid == pid]
    return max(own, key=lambda part: part.monotonic_ns).path if own else None


def collect(output: str, run: str, *, force: bool = False) -> Collected:
    """Make one file of the parts of *run*; what cannot be joined stays as it is, and is readable so."""
    every = parts(output, run)
    growing = tuple(part for part in every if part.is_written)
    done = tuple(part for part in every if part not in growing)
    if not done:
        return Collected(None, growing)
    try:
        if len(done) == 1:
            _place(done[0].path, output, force=force)
        else:
            _join(done, output, force=force)
    except OSError as error:
        return Collected(None, growing, done, error.strerror or str(error))
    return Collected(output, growing)


def _join(done: Sequence[TracePart], output: str, *, force: bool) -> None:
    folder, name = os.path.split(output)
    start = os.fsdecode(os.fsencode(name)[:100])
    fresh = os.path.join(folder, f".{start}.{os.urandom(8).hex()}.new")
    file = os.open(fresh, _NEW, 0o600)
    try:
        for part in done:
            _append(file, part.path)
        _place(fresh, output, force=force)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    finally:
        os.close(file)
    for part in done:
        with suppress(OSError):
            os.unlink(part.path)


def _append(file: int, path: str) -> None:
    """Copy *path* to the end of *file*, from a multiple of the page on: there a section begins."""
    at = -(-os.fstat(file).st_size // _PAGE) * _PAGE
    os.ftruncate(file, at)
    source = open_plain(path, os.O_NOFOLLOW)
    try:
        taken = 0
        while count := _copy_some(source, taken, file, at + taken):
            taken += count
    finally:
        os.close(source)


def _copy_some(source: int, from_byte: int, file: int, to_byte: int) -> int:
    try:
        return os.copy_file_range(source, file, _COPIED_AT_ONCE, from_byte, to_byte)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    part = os.pread(source, 1 << 20, from_byte)
    return os.pwrite(file, part, to_byte) if part else 0


def _place(path: str, output: str, *, force: bool) -> None:
    """Move *path* to *output*. Without *force* nothing that came to lie there meanwhile is replaced."""
    if force:
        os.replace(path, output)
        return
    try:
        os.link(path, output, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(output):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), output) from error
        os.rename(path, output)
        return
    os.unlink(path)
