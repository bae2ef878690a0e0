"""One process as /proc tells it, read so that a reused pid can never mix in."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vram.host.local.cgroup import membership, workload
from vram.host.local.identity import user_name
from vram.model.process import ProcessFacts, ProcessRef
from vram.protected import has_a_role

if TYPE_CHECKING:
    from vram.host.local.workload_names import ContainerNames

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Of the kernel's task flags, field 9 of stat: PF_EXITING, PF_FORKNOEXEC, and PF_KTHREAD.
_EXITING, _FORKED, _KERNEL_THREAD = 0x4, 0x40, 0x200000
# Command lines reach megabytes; nobody reads more, and a snapshot carries every one.
_LONGEST_COMMAND = 16 * 1024
_DELETED = " (deleted)"
# Environments reach megabytes too; what names a job or a notebook is set early on.
_MOST_ENVIRONMENT = 256 * 1024
_TELLING = (b"SLURM_JOB_ID=", b"KUBERNETES_SERVICE_HOST=", b"JPY_SESSION_NAME=")


def text(raw: bytes) -> str:
    r"""Decode foreign bytes; what is not UTF-8 becomes a visible \xNN."""
    return raw.decode("utf-8", "backslashreplace")


class Stat:
    """The fields of /proc/PID/stat that say who a process is and what it is doing."""

    __slots__ = (
        "exiting",
        "forked",
        "group",
        "kernel_thread",
        "name",
        "parent",
        "session",
        "started_at",
        "state",
        "threads",
    )

    def __init__(self, raw: bytes) -> None:
        # The name may hold spaces, brackets and newlines: the last bracket ends it.
        opened, closed = raw.index(b"("), raw.rindex(b")")
        fields = raw[closed + 2 :].split()
        self.name = text(raw[opened + 1 : closed])
        self.state = text(fields[0])
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        flags = int(fields[6])
        self.exiting, self.forked = bool(flags & _EXITING), bool(flags & _FORKED)
        self.kernel_thread = bool(flags & _KERNEL_THREAD)
        self.threads = int(fields[17])
        self.started_at = int(fields[19])


class ProcessFolder:
    """/proc/PID held open: whatever is read through it is of that very process.

    Once the process has ended every read fails, even when the pid lives again.
    """

    def __init__(self, root: str, pid: int) -> None:
        self.pid = pid
        self._folder = os.open(f"{root}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> ProcessFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def drain(file: int, limit: int) -> bytes:
    """Read *file* to its end, or to *limit*: /proc hands out a page or so at a time."""
    parts = [os.read(file, min(limit, 65536))]
    left = limit - len(parts[0])
    while parts[-1] and left > 0:
        parts.append(os.read(file, min(left, 65536)))
        left -= len(parts[-1])
    return b"".join(parts)


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


class LocalProc:
    """Reads identities from a tree like /proc."""

    def __init__(self, root: str = "/proc", files_root: str = "/") -> None:
        self._root = root
        self._files_root = files_root

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        try:
            with ProcessFolder(self._root, pid) as folder:
                stat = folder.stat()
                return (_ref(folder, stat), self._facts(folder, stat)) if stat else None
        except OSError:
            return None

    def _facts(self, folder: ProcessFolder, stat: Stat) -> ProcessFacts:
        thread = living_thread(folder, stat)
        inside = inside_of(thread)
        alive = (folder.stat(thread) if thread else None) or stat
        facts = _facts(folder, stat, alive, inside)
        environ = b"" if alive.state == "D" else folder.read(f"{inside}environ", _MOST_ENVIRONMENT) or b""
        nameless = not facts.workload.container and not any("ipykernel" in word for word in facts.argv[:4])
        if nameless and not any(word in environ for word in _TELLING):
            return facts
        from vram.host.local.workload_names import named

        return replace(facts, workload=named(facts.workload, environ, facts.argv, self._names))

    @cached_property
    def _names(self) -> ContainerNames:
        from vram.host.local.workload_names import ContainerNames

        return ContainerNames(self._files_root)

    def relatives(self, pids: Collection[int]) -> list[int]:
        return sorted(
            pid
            for pid, stat in self._stats()
            if any(each in pids for each in (stat.parent, stat.group, stat.session))
        )

    def descendants(self, pid: int) -> list[int]:
        children: dict[int, list[int]] = {}
        for child, stat in self._stats():
            children.setdefault(stat.parent, []).append(child)
        found, waiting = [], sorted(children.get(pid, ()), reverse=True)
        while waiting:
            found.append(waiting.pop())
            waiting += sorted(children.get(found[-1], ()), reverse=True)
        return found

    def _stats(self) -> Iterator[tuple[int, Stat]]:
        """Every process there is, and what is everybody's to read of it."""
        for name in os.listdir(self._root):
            if name.isdigit():
                with suppress(OSError), ProcessFolder(self._root, int(name)) as folder:
                    stat = folder.stat()
                    if stat:
                        yield int(name), stat

    def image(self, pid: int) -> str | None:
        try:
            with ProcessFolder(self._root, pid) as folder:
                stat = folder.stat()
                thread = living_thread(folder, stat) if stat else None
                return _image(folder.read(f"{inside_of(thread)}stat") or b"")
        except OSError:
            return None

    def started_at(self, pid: int) -> int | None:
        return started_at(pid, self._root)


def started_at(pid: int, root: str = "/proc") -> int | None:
    """When *pid* was started, in clock ticks since boot; None where nobody has that pid."""
    try:
        with ProcessFolder(root, pid) as folder:
            stat = folder.stat()
            return stat.started_at if stat else None
    except OSError:
        return None


def _image(stat: bytes) -> str | None:
    """Where code and stack begin: the kernel draws both anew at every exec."""
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 26:
        return None
    code, stack = int(fields[23]), int(fields[25])
    # Zero or one is what the kernel tells those who may not know.
    return f"{code:x}-{stack:x}" if stack > 1 else None


def _ref(folder: ProcessFolder, stat: Stat) -> ProcessRef:
    namespace = folder.about("ns/pid")
    return ProcessRef(folder.pid, stat.started_at, namespace.st_ino if namespace else None)


def _facts(folder: ProcessFolder, stat: Stat, alive: Stat, inside: str) -> ProcessFacts:
    """Who it is, as its first thread tells, and what the thread *alive* runs, as *inside* has it."""
    status = _status(folder.read("status") or b"")
    uid = _first_number(status.get(b"Uid"))
    executable, deleted = _executable(folder, f"{inside}exe")
    group = membership(text(folder.read(f"{inside}cgroup") or b""))
    return ProcessFacts(
        command=stat.name,
        argv=_argv(folder, alive.state, f"{inside}cmdline"),
        uid=uid,
        user=user_name(uid) if uid is not None else None,
        executable=executable,
        executable_deleted=deleted,
        executable_trusted=_is_trusted(folder, inside, executable, uid),
        kernel_thread=stat.kernel_thread,
        state=alive.state,
        exiting=alive.exiting,
        forked=stat.forked,
        parent=stat.parent or None,
        group=stat.group,
        session=stat.session,
        age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_at / TICKS_PER_S),
        namespace_pids=tuple(int(each) for each in status.get(b"NSpid", b"").split() if each.isdigit()),
        cgroup=group,
        workload=workload(group),
    )


def _status(raw: bytes) -> dict[bytes, bytes]:
    # Each key once and the first wins: the kernel escapes newlines in Name, the only foreign field.
    fields: dict[bytes, bytes] = {}
    for line in raw.split(b"\n"):
        key, _, value = line.partition(b":")
        fields.setdefault(key, value.strip())
    return fields


def _first_number(field: bytes | None) -> int | None:
    first = field.split()[0] if field and field.split() else b""
    return int(first) if first.isdigit() else None


def _argv(folder: ProcessFolder, state: str, name: str) -> tuple[str, ...]:
    # The kernel takes the target's memory lock to read its arguments. A process stuck in the
    # driver can hold that lock for good, and `ps` is known to hang on such: leave it alone.
    if state == "D":
        return ()
    raw = folder.read(name, _LONGEST_COMMAND) or b""
    return tuple(text(word) for word in raw.rstrip(b"\0").split(b"\0")) if raw.strip(b"\0") else ()


def _is_trusted(folder: ProcessFolder, inside: str, executable: str | None, uid: int | None) -> bool | None:
    if executable is None or not has_a_role(executable):
        return None  # nothing depends on it
    from vram.host.local.installed_programs import is_installed_by_root

    return is_installed_by_root(folder, inside, executable, uid)


def _executable(folder: ProcessFolder, name: str) -> tuple[str | None, bool]:
    link = folder.link(name)
    if link is None:
        return None, False
    path = text(link)
    if not path.endswith(_DELETED):
        return path, False
    if path.startswith("/memfd:"):  # never had a name to lose
        return path.removesuffix(_DELETED), False
    # A file may really be called so; then it still has a name in its folder.
    about = folder.about(name)
    deleted = about is None or about.st_nlink == 0
    return (path.removesuffix(_DELETED), True) if deleted else (path, False)
