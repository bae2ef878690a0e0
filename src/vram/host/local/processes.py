"""Who a process is: what /proc tells of its identity, its program, its family and its workload."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from msgspec.structs import replace

from vram.host.local.identity import user_name
from vram.host.local.workload import ContainerNames, membership, named, workload
from vram.host.ports import ProcessCondition
from vram.model.process import ProcessFacts, ProcessRef
from vram.payloads.procfs import ProcessFolder, Stat, inside_of, living_thread, read_stat, started_at, text
from vram.protected import has_a_role

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Command lines reach megabytes; nobody reads more, and a snapshot carries every one.
_MAX_COMMAND_LENGTH = 16 * 1024
_DELETED = " (deleted)"
# Environments reach megabytes too; what names a job or a notebook is set early on.
_MAX_ENVIRONMENT = 256 * 1024
_TELLING = (b"SLURM_JOB_ID=", b"KUBERNETES_SERVICE_HOST=", b"JPY_SESSION_NAME=")


class LocalProc:
    """Reads identities from a tree like /proc."""

    def __init__(self, root: str = "/proc", files_root: str = "/") -> None:
        self._root = root
        self._names = ContainerNames(files_root)

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
        environ = b"" if alive.state == "D" else folder.read(f"{inside}environ", _MAX_ENVIRONMENT) or b""
        nameless = not facts.workload.container and not any("ipykernel" in word for word in facts.argv[:4])
        if nameless and not any(word in environ for word in _TELLING):
            return facts
        return replace(facts, workload=named(facts.workload, environ, facts.argv, self._names))

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
                alive = folder.stat(thread) if thread else stat
                return _image(alive) if alive else None
        except OSError:
            return None

    def started_at(self, pid: int) -> int | None:
        return started_at(pid, self._root)

    def condition(self, pid: int) -> ProcessCondition | None:
        stat = read_stat(pid, root=self._root)
        if stat is None:
            return None
        return ProcessCondition(stat.started_at, stat.state, stat.exiting, stat.parent or None, _image(stat))


def _image(stat: Stat) -> str | None:
    """Where code and stack begin: the kernel draws both anew at every exec; None where we may not know."""
    return f"{stat.code:x}-{stat.stack:x}" if stat.stack > 1 else None


def _ref(folder: ProcessFolder, stat: Stat) -> ProcessRef:
    namespace = folder.about("ns/pid")
    return ProcessRef(folder.pid, stat.started_at, namespace.st_ino if namespace else None)


def _facts(folder: ProcessFolder, stat: Stat, alive: Stat, inside: str) -> ProcessFacts:
    """Who it is, as its first thread tells, and what the thread *alive* runs, as *inside* has it."""
    status = folder.status()
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


def _first_number(field: bytes | None) -> int | None:
    first = field.split()[0] if field and field.split() else b""
    return int(first) if first.isdigit() else None


def _argv(folder: ProcessFolder, state: str, name: str) -> tuple[str, ...]:
    # The kernel takes the target's memory lock to read its arguments. A process stuck in the
    # driver can hold that lock for good, and `ps` is known to hang on such: leave it alone.
    if state == "D":
        return ()
    raw = folder.read(name, _MAX_COMMAND_LENGTH) or b""
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
