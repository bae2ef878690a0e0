"""/proc/PID, read so that a reused pid can never mix in: its folder, and what its files say.

Everything that vram reads of another process's /proc files is read through here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

# Of the kernel's task flags, field 9 of stat: PF_EXITING, PF_FORKNOEXEC, and PF_KTHREAD.
_EXITING, _FORKED, _KERNEL_THREAD = 0x4, 0x40, 0x200000
_DELETED = b" (deleted)"


def text(raw: bytes) -> str:
    r"""Decode foreign bytes; what is not UTF-8 becomes a visible \xNN."""
    return raw.decode("utf-8", "backslashreplace")


class Stat:
    """The fields of /proc/PID/stat that say who a process is and what it is doing.

    ``cpu_ticks`` is what all its threads have used, ``reaped_ticks`` what children used that it waited for;
    ``processor`` is where it ran last. ``code`` and ``stack`` are where both begin, which the kernel draws
    anew at every exec, and says 0 or 1 to those who may not know.
    """

    __slots__ = (
        "code",
        "cpu_ticks",
        "exiting",
        "forked",
        "group",
        "kernel_thread",
        "name",
        "parent",
        "processor",
        "reaped_ticks",
        "session",
        "stack",
        "started_at",
        "state",
        "threads",
    )

    def __init__(self, raw: bytes) -> None:
        """Raises ValueError or IndexError where *raw* is no such line."""
        # The name may hold spaces, brackets and newlines: the last bracket ends it.
        opened, closed = raw.index(b"("), raw.rindex(b")")
        fields = raw[closed + 2 :].split()
        self.name = text(raw[opened + 1 : closed])
        self.state = text(fields[0])
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        flags = int(fields[6])
        self.exiting, self.forked = bool(flags & _EXITING), bool(flags & _FORKED)
        self.kernel_thread = bool(flags & _KERNEL_THREAD)
        self.cpu_ticks = int(fields[11]) + int(fields[12])
        self.reaped_ticks = int(fields[13]) + int(fields[14])
        self.threads = int(fields[17])
        self.started_at = int(fields[19])
        self.code, self.stack = (int(fields[23]), int(fields[25])) if len(fields) > 25 else (0, 0)
        self.processor = int(fields[36]) if len(fields) > 36 else -1

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie; a process whose first thread alone has ended is none."""
        return self.state == "Z" and self.threads < 2


class ProcessFolder:
    """/proc/PID held open: once that process has ended every read fails, even when the pid lives again.

    Raises OSError where no process has that pid.
    """

    def __init__(self, root: str, pid: int) -> None:
        self.pid = pid
        self._folder = os.open(f"{root}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> ProcessFolder:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._folder)

    def read(self, name: str, limit: int = 1 << 26) -> bytes | None:
        """The whole file, or None where it is denied or gone."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return None
        try:
            return drain(file, limit)
        except OSError:
            return None
        finally:
            os.close(file)

    def names(self, name: str) -> list[str]:
        """What a folder in it has, or nothing where it is denied or gone."""
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return []
        try:
            return os.listdir(folder)
        except OSError:
            return []
        finally:
            os.close(folder)

    def link(self, name: str) -> bytes | None:
        try:
            return os.readlink(name.encode(), dir_fd=self._folder)
        except OSError:
            return None

    def open(self, name: str) -> int | None:
        """What *name* stands for, as a descriptor that only identifies it; None where denied or gone."""
        try:
            return os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return None

    def about(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._folder)
        except OSError:
            return None

    def stat(self, thread: int | None = None) -> Stat | None:
        """Of its first thread, which stands for the process, or of another *thread*."""
        raw = self.read("stat" if thread is None else f"task/{thread}/stat")
        try:
            return Stat(raw) if raw else None
        except (ValueError, IndexError):
            return None

    def status(self, thread: int | None = None) -> dict[bytes, bytes]:
        """The lines of /proc/PID/status, or of one *thread*, by their names; nothing where denied or gone."""
        # Each key once and the first wins: the kernel escapes newlines in Name, the only foreign field.
        fields: dict[bytes, bytes] = {}
        for line in (self.read(f"{inside_of(thread)}status") or b"").split(b"\n"):
            key, colon, value = line.partition(b":")
            if colon:
                fields.setdefault(key, value.strip())
        return fields


def drain(file: int, limit: int) -> bytes:
    """Read *file* to its end, or to *limit*: /proc hands out a page or so at a time."""
    parts = [os.read(file, min(limit, 65536))]
    left = limit - len(parts[0])
    while parts[-1] and left > 0:
        parts.append(os.read(file, min(left, 65536)))
        left -= len(parts[-1])
    return b"".join(parts)


def read_stat(pid: int, thread: int | None = None, root: str = "/proc") -> Stat | None:
    """Of *pid*, or of one of its threads; None where no process has that pid."""
    try:
        with ProcessFolder(root, pid) as folder:
            return folder.stat(thread)
    except OSError:
        return None


def read_status(pid: int) -> dict[bytes, bytes]:
    """The lines of /proc/PID/status by their names; nothing where it is denied or gone."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            return folder.status()
    except OSError:
        return {}


def started_at(pid: int, root: str = "/proc") -> int | None:
    """When *pid* was started, in clock ticks since boot; None where no process has that pid."""
    stat = read_stat(pid, root=root)
    return stat.started_at if stat else None


def living_thread(folder: ProcessFolder, stat: Stat) -> int | None:
    """A thread that lives on where the first one has ended; None where that has not, or all have.

    The kernel shows such a process as a zombie without files, arguments and memory: all of that
    is to be read of a thread that still has it.
    """
    if stat.state != "Z" or stat.threads < 2:
        return None
    for name in folder.names("task"):
        its = folder.stat(int(name))
        if its and its.state not in ("Z", "X"):
            return int(name)
    return None


def inside_of(thread: int | None) -> str:
    """Where a process's folder has what *thread* runs and holds; None: the first one."""
    return "" if thread is None else f"task/{thread}/"


class MapLine:
    """A line of /proc/PID/maps; ``path`` is without the kernel's mark that the file was deleted."""

    __slots__ = ("end", "offset", "path", "permissions", "start")

    def __init__(self, line: bytes) -> None:
        fields = line.split(None, 5)
        start, _, end = fields[0].partition(b"-")
        self.start, self.end = int(start, 16), int(end, 16)
        self.permissions = fields[1]
        self.offset = int(fields[2], 16)
        path = fields[5] if len(fields) > 5 else b""
        self.path = path[: -len(_DELETED)] if path.endswith(_DELETED) else path

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def map_lines(maps: bytes, needles: Sequence[bytes] = (b"",)) -> Iterator[MapLine]:
    """Every line of *maps*, or only those that contain one of *needles*."""
    for line in maps.split(b"\n"):  # a name may hold any other line break
        if line and any(needle in line for needle in needles):
            yield MapLine(line)


# ---- the threads that the CUDA driver starts in a process ----

# "cuda00001400006" comes with cuInit and carries out checkpoints, "cuda-EvtHandlr" with the first context.
_DRIVER_THREAD = r"cuda[0-9a-f]{8,11}|cuda-EvtHandlr"
_MAX_THREADS_READ = 256


def is_driver_thread(name: str) -> bool:
    return re.fullmatch(_DRIVER_THREAD, name) is not None


def may_run_driver_threads(folder: ProcessFolder) -> bool:
    """Whether one of its threads has such a name; also where they are too many, or cannot be listed."""
    threads = folder.names("task")
    if not 0 < len(threads) <= _MAX_THREADS_READ:
        return True
    stats = (folder.stat(int(name)) for name in threads)
    return any(stat is not None and is_driver_thread(stat.name) for stat in stats)
