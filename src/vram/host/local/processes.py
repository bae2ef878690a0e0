"""Processes: what /proc tells of their identity, program, family and workload, and how they are opened."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from msgspec.structs import replace

from vram.children import LocalPidHandle
from vram.folders import is_root
from vram.host.local.identity import user_name
from vram.host.local.launch import launch
from vram.host.local.workload import ContainerNames, membership, named, processes, uid_in, variables, workload
from vram.host.ports import ProcessCondition
from vram.model.process import LaunchClaim, ProcessFacts, ProcessRef, RestFacts
from vram.payloads.procfs import (
    ProcessFolder,
    Stat,
    inside_of,
    living_thread,
    may_run_driver_threads,
    read_stat,
    started_at,
    text,
)
from vram.protected import has_a_role

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Command lines reach megabytes; no reader needs more, and a snapshot carries every one.
_MAX_COMMAND_LENGTH = 16 * 1024
_DELETED = " (deleted)"
# Environments reach megabytes too; what names a job or a notebook is set early on.
_MAX_ENVIRONMENT = 256 * 1024
# Which group of the virtual GPU's machine a process is in: the kernel knows nothing of these.
_VIRTUAL_CGROUP = frozenset((b"VRAM_VIRTUAL_CGROUP",))
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
        facts = _facts(folder, stat, alive, thread)
        is_stuck = alive.state == "D" or facts.kill_pending
        read = None if is_stuck else folder.read(f"{inside}environ", _MAX_ENVIRONMENT)
        environ = read or b""
        # What only its command line tells counts where the rest may be read, too.
        if read is not None and (launched := launch(folder, facts, environ)):
            facts = replace(facts, launch=self._with_recorded(launched, stat, facts))
        if b"VRAM_VIRTUAL_CGROUP=" in environ and os.environ.get("VRAM_VIRTUAL_GPU"):
            group = variables(environ, _VIRTUAL_CGROUP).get(b"VRAM_VIRTUAL_CGROUP")
            facts = replace(facts, cgroup=group, workload=workload(group))
        nameless = not facts.workload.container and not any("ipykernel" in word for word in facts.argv[:4])
        if nameless and not any(word in environ for word in _TELLING):
            return facts
        return replace(facts, workload=named(facts.workload, environ, facts.argv, self._names))

    def _with_recorded(self, launched: LaunchClaim, stat: Stat, facts: ProcessFacts) -> LaunchClaim:
        """*launched* with whether the launcher that the process recorded still runs."""
        pid = launched.recorded_pid
        if pid is None or len(facts.namespace_pids) > 1:
            return launched  # a number of another PID namespace
        recorded = read_stat(pid, root=self._root)
        # One that started later has only been given the number.
        lives = recorded is not None and not recorded.has_ended and recorded.started_at <= stat.started_at
        return replace(launched, recorded_lives=lives)

    def relatives(self, pids: Collection[int]) -> list[int]:
        return sorted(
            folder.pid
            for folder, stat in processes(self._root)
            if any(each in pids for each in (stat.parent, stat.group, stat.session))
        )

    def descendants(self, pid: int) -> list[int]:
        children: dict[int, list[int]] = {}
        for folder, stat in processes(self._root):
            children.setdefault(stat.parent, []).append(folder.pid)
        found, waiting = [], sorted(children.get(pid, ()), reverse=True)
        while waiting:
            found.append(waiting.pop())
            waiting += sorted(children.get(found[-1], ()), reverse=True)
        return found

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
        return ProcessCondition(
            stat.started_at,
            stat.state,
            stat.exiting,
            stat.parent or None,
            _image(stat),
            stat.cpu_ticks / TICKS_PER_S,
        )

    def rest_of_job(self, known: Collection[tuple[ProcessRef, ProcessFacts]]) -> RestFacts | None:
        from vram.host.local.rest import rest_of_job  # few machines have a job that is not whole

        return rest_of_job(known, self._root)


def _image(stat: Stat) -> str | None:
    """Where code and stack begin: the kernel draws both anew at every exec; None where we may not know."""
    return f"{stat.code:x}-{stat.stack:x}" if stat.stack > 1 else None


def _ref(folder: ProcessFolder, stat: Stat) -> ProcessRef:
    namespace = folder.about("ns/pid")
    return ProcessRef(folder.pid, stat.started_at, namespace.st_ino if namespace else None)


def _facts(folder: ProcessFolder, stat: Stat, alive: Stat, thread: int | None) -> ProcessFacts:
    """Who it is, as its first thread tells, and what *thread*, whose stat is *alive*, runs."""
    inside = inside_of(thread)
    status = folder.status()
    uid = uid_in(status)
    is_killed = _is_kill_pending(folder.status(thread) if thread else status)
    is_stuck = alive.state == "D" or is_killed
    executable, deleted = _executable(folder, f"{inside}exe")
    group = membership(text(folder.read(f"{inside}cgroup") or b""))
    return ProcessFacts(
        command=stat.name,
        argv=() if is_stuck else _argv(folder, f"{inside}cmdline"),
        uid=uid,
        user=user_name(uid) if uid is not None else None,
        executable=executable,
        executable_deleted=deleted,
        executable_trusted=_is_trusted(folder, inside, executable, uid),
        kernel_thread=stat.kernel_thread,
        state=alive.state,
        exiting=alive.exiting,
        forked=stat.forked,
        initialised_cuda=_initialised_cuda(folder, stat),
        parent=stat.parent or None,
        group=stat.group,
        session=stat.session,
        age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started_at / TICKS_PER_S),
        namespace_pids=tuple(int(each) for each in status.get(b"NSpid", b"").split() if each.isdigit()),
        cgroup=group,
        workload=workload(group),
        kill_pending=is_killed,
        waits_in=_kernel_function(folder, alive.state, inside) if is_stuck else None,
    )


def _initialised_cuda(folder: ProcessFolder, stat: Stat) -> bool | None:
    if not stat.forked:
        return None
    return stat.threads >= 2 and may_run_driver_threads(folder)


def _argv(folder: ProcessFolder, name: str) -> tuple[str, ...]:
    """Its arguments. Not to be asked of a process that is stuck in the kernel.

    The kernel takes the target's memory lock to read them. A process stuck in the driver can hold that
    lock for good, and `ps` is known to hang on such.
    """
    raw = folder.read(name, _MAX_COMMAND_LENGTH) or b""
    return tuple(text(word) for word in raw.rstrip(b"\0").split(b"\0")) if raw.strip(b"\0") else ()


# ---- processes that SIGKILL does not end ----

_KILL = 1 << 8  # signal 9 in the kernel's masks of pending signals
_FUNCTION = r"[A-Za-z_][A-Za-z0-9_.]{0,127}"
_FRAME = rf"\[<[0-9a-fx]+>\] ({_FUNCTION})\+\S+(?: \[(\w+)\])?"
_MAX_STACK = 16 * 1024


def _is_kill_pending(status: Mapping[bytes, bytes]) -> bool:
    """Whether SIGKILL waits for the thread with this *status*, or for any thread of its process.

    The kernel adds it to the signals of each thread when one of them ends the process, too.
    """
    masks = (status.get(name, b"") for name in (b"SigPnd", b"ShdPnd"))
    return any(re.fullmatch(rb"[0-9a-f]{1,16}", mask) and int(mask, 16) & _KILL for mask in masks)


def _kernel_function(folder: ProcessFolder, state: str, inside: str) -> str | None:
    """The kernel's function that a process sleeps in, or that it runs in; None where we may not know.

    Neither file needs the target's memory lock. But to read `stack` the kernel waits for an exec that is
    under way, which may be what a process in state D is stuck in; `wchan` waits for nothing.
    """
    asleep = text((folder.read(f"{inside}wchan", _MAX_STACK) or b"").strip())
    if re.fullmatch(_FUNCTION, asleep):
        return asleep
    if state == "D":
        return None
    frames = re.findall(_FRAME, text(folder.read(f"{inside}stack", _MAX_STACK) or b""))
    # One that runs may have been interrupted: what the interrupt added lies above the driver's function.
    return next((name for name, module in frames if module), frames[0][0] if frames else None)


def _is_trusted(folder: ProcessFolder, inside: str, executable: str | None, uid: int | None) -> bool | None:
    if executable is None or not has_a_role(executable):
        return None  # nothing depends on it
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


# ---- whether root installed the program that a process runs, under the path that the kernel shows ----
#
# The path alone proves nothing. In a user and a mount namespace of its own any user may mount any file of
# root's over /usr/bin/login and run it there, or hand it, opened, to a process outside, to be executed there.
# So it is asked whose the file is, and in which mount namespace its path was found.

_OTHERS_WRITE, _GROUP_WRITES = 0o002, 0o020


def is_installed_by_root(folder: ProcessFolder, inside: str, path: str, uid: int | None) -> bool | None:
    """Judge the program of the process in *folder*, which runs as *uid*; None where it cannot be read.

    The file must be root's, closed to changes by others, and one of these must hold:

    - it was found where only root mounts: in our own mount namespace, or in that of the first process;
    - it is the very file that we have under that path, as with services that systemd shields from others;
    - the process is root's own, in our user namespace, as the services of a cluster in containers are.
    """
    file = folder.open(f"{inside}exe")
    if file is None:
        return None
    try:
        # Asked while the file is open: until then its mount cannot go, nor its number be another's.
        file_system = _file_system_among_roots_mounts(_mount_of(file))
        if file_system and file_system.startswith(b"fuse"):
            return False  # what it says of owners is the word of its server, and it may never answer
        about = os.fstat(file)
    except OSError:
        return False
    finally:
        os.close(file)
    by_group = about.st_mode & _GROUP_WRITES and about.st_gid != 0
    if not is_root(about.st_uid) or by_group or about.st_mode & _OTHERS_WRITE:
        return False
    runs_as_root = uid == 0 and _is_our_user_namespace(folder.about(f"{inside}ns/user"))
    return file_system is not None or _is_the_file_at(path, about) or runs_as_root


def _is_the_file_at(path: str, about: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(about, os.stat(path))
    return False


def _is_our_user_namespace(namespace: os.stat_result | None) -> bool:
    return namespace is not None and os.path.samestat(namespace, os.stat("/proc/self/ns/user"))


def _mount_of(file: int) -> int:
    """The number of the mount that *file* was found in; no other mount has it."""
    with open(f"/proc/self/fdinfo/{file}", encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)


def _file_system_among_roots_mounts(mount: int) -> bytes | None:
    """The kind of file system where only root can have made *mount*; None elsewhere.

    The first process's namespace is another than ours where vram runs in a container and sees the machine.
    """
    found = _file_system("/proc/self/mountinfo", mount)
    with suppress(OSError):  # not every user may read it
        if found is None and _is_our_user_namespace(os.stat("/proc/1/ns/user")):
            return _file_system("/proc/1/mountinfo", mount)
    return found


def _file_system(path: str, mount: int) -> bytes | None:
    with open(path, "rb") as lines:
        line = next((line for line in lines if line.startswith(b"%d " % mount)), None)
    return line and line.partition(b" - ")[2].partition(b" ")[0]


# ---- processes opened by pidfd: a signal reaches the process that was checked, or none ----


class LocalSignals:
    """Opens pid handles, and knows which processes run us."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._root = proc_root

    def open(self, pid: int) -> LocalPidHandle | None:
        if pid <= 0:
            return None
        try:
            return LocalPidHandle(pid, os.pidfd_open(pid))
        except OSError:  # gone, or a thread that leads no process
            return None

    def self_and_ancestors(self) -> frozenset[int]:
        """Our own pid and those of all our ancestors, as far as /proc shows them."""
        from vram.payloads.procfs import ProcessFolder

        found, pid = [os.getpid()], os.getppid()
        while pid > 0 and pid not in found:
            found.append(pid)
            try:
                with ProcessFolder(self._root, pid) as folder:
                    stat = folder.stat()
            except OSError:
                break
            pid = stat.parent if stat else 0
        return frozenset(found)
