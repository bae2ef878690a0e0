"""Can a process be attached to from here, is it a Python, and which one? Read from /proc alone."""

from __future__ import annotations

import io
import os
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from vram.errors import CallsGivenUp, NoSuchProcess, NotPermitted, NotReachable, TargetDied
from vram.host.local.seccomp import ThreadLimits, given_up, main_thread_limits
from vram.model.plan import Target
from vram.model.process import GivenUp
from vram.payloads.procfs import read_status, started_at, text
from vram.reach import container_filters
from vram.reach.target_root import open_entry, sees_our_files

_INTERPRETER = re.compile(r"python(?:3(?:\.(\d+))?)?[td]?$")
_LIBRARY = re.compile(rb"/libpython3\.(\d+)[td]*\.so")
_GIVEN_UP: dict[GivenUp, str] = {
    "strict": "has given up all system calls but four (seccomp, strict)",
    "filters": "has given up system calls (seccomp)",
}
_STOPPED = {"T": "is stopped", "t": "is stopped by a debugger", "D": "hangs in the kernel"}
# A process waits for a disk now and then, or is stopped by another vram for a moment: that passes.
_PASSING, _PASSING_S = ("D", "t"), 0.5
ENDING_S = 0.5
"""A process that ends closes its files and sockets so long before it is seen to have ended, at most."""
_NEEDED_SYMBOL = b"\0Py_AddPendingCall\0"
_MAX_PROGRAM_NBYTES = 512 << 20
_PORTION_NBYTES = 1 << 20
# Of a file of /proc: its process may have made its command line or environment as long as it likes.
_MAX_FILE_NBYTES = 64 << 20


class TargetProcess(Struct, frozen=True):
    """A target that may be attached to.

    ``minor`` is the version of its Python, None where it has none, or no file name has the version.
    """

    target: Target
    argv: tuple[str, ...]
    executable: str
    minor: int | None
    pid_inside: int
    limits: ThreadLimits | None = None
    """What its main thread can never do, when it was examined."""
    is_python: bool = True

    @property
    def is_ours(self) -> bool:
        """Root may attach to others; what a process offers to its owner alone is not used by root."""
        return self.target.uid == os.geteuid()

    @property
    def pid(self) -> int:
        return self.target.process.pid


def examine(target: Target) -> TargetProcess:
    """Read about *target* without touching it; raises why no injector could work."""
    pid = target.process.pid
    status = _status(pid)
    if os.geteuid() not in (target.uid, 0):
        raise NotPermitted(f"pid {pid} belongs to {target.user or target.uid}", hint="ask its owner")
    _require_awake(pid)
    maps, executable = _read(pid, "maps"), target.executable or ""
    name = _INTERPRETER.search(os.path.basename(executable))
    library = _LIBRARY.search(maps)
    limits = _checked_calls(pid)
    minor = library.group(1).decode() if library else name.group(1) if name else None
    return TargetProcess(
        target=target,
        argv=_argv(pid),
        executable=executable,
        minor=int(minor) if minor else None,
        pid_inside=int(status.get("NSpid", str(pid)).split()[-1]),
        limits=limits,
        is_python=library is not None or _is_python(pid),
    )


@contextmanager
def pidfd_of(process: TargetProcess) -> Iterator[int]:
    """A pidfd of the process that was meant: until it ends, no other process gets its pid."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError as error:
        raise NoSuchProcess(f"process {process.pid} has exited") from error
    try:
        if started_at(process.pid) != process.target.process.started_at:
            raise NoSuchProcess(f"process {process.pid} has exited, and another one has its pid")
        yield pidfd
    finally:
        os.close(pidfd)


def has_ended(pidfd: int, patience_s: float = 0.0) -> bool:
    """Whether the process of *pidfd* has ended, or does so within *patience_s*."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def died(*pids: int) -> TargetDied:
    """The error for processes that ended after something was done to them, and before that was over."""
    named, where = ", ".join(map(str, pids)), "it" if len(pids) == 1 else "them"
    return TargetDied(
        f"pid {named} ended while vram was in {where}", hint="its log or `journalctl -k` may say why"
    )


def namespace_mismatch(pid: int, *, same_files: bool = False) -> str | None:
    """Why our clock, and with *same_files* our files, differ from its own; None where they are the same."""
    if same_files and not sees_our_files(pid):
        return "it sees other files than vram (a container)"
    if not shares_namespace(pid, "time"):
        return "it has another clock than vram (a time namespace): run vram inside it"
    return None


def has_proc(pid: int, pid_inside: int) -> bool:
    """Whether *pid* finds itself below /proc, as it must in a chroot or a container."""
    if sees_our_files(pid):
        return True
    try:
        os.close(open_entry(pid, f"/proc/{pid_inside}/fd"))
    except OSError:
        return False
    return True


def shares_namespace(pid: int, name: str) -> bool:
    try:
        return os.stat(f"/proc/{pid}/ns/{name}").st_ino == os.stat(f"/proc/self/ns/{name}").st_ino
    except OSError:
        return True  # kernels without that namespace have one for all


def _require_awake(pid: int) -> None:
    until = time.monotonic() + _PASSING_S
    state = _status(pid).get("State", "?")[:1]
    while state in _PASSING and time.monotonic() < until:
        time.sleep(_PASSING_S / 20)
        state = _status(pid).get("State", "?")[:1]
    if state in _STOPPED:
        hint = f"resume it first: kill -CONT {pid}" if state == "T" else ("try again later")
        raise NotReachable(f"pid {pid} {_STOPPED[state]} and cannot answer", hint=hint)


def _checked_calls(pid: int) -> ThreadLimits | None:
    """The limits of its main thread; raises where one of its threads may be killed for a system call."""
    limits = main_thread_limits(pid)
    kind = given_up(pid)
    if kind is not None and not container_filters.let_visits_pass(pid):
        raise CallsGivenUp(
            f"pid {pid} {_GIVEN_UP[kind]}, and may be killed for one that vram makes in it",
            hint="in its own code, vram.flush() releases caches and vram.scope() measures",
        )
    return limits


def _is_python(pid: int) -> bool:
    """Whether the program contains Python itself, as most distributions' interpreters do."""
    try:
        with open(f"/proc/{pid}/exe", "rb", buffering=0) as file:
            return _contains(file)
    except OSError:
        return False


def _contains(file: io.FileIO) -> bool:
    """Read, not mapped: truncating a mapped file kills its reader. Holes of sparse files are skipped."""
    at, before = 0, b""
    while at < _MAX_PROGRAM_NBYTES:
        try:
            data_at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:  # nothing but a hole is left
            return False
        if data_at >= _MAX_PROGRAM_NBYTES:
            return False
        before = before if data_at == at else b""
        part = os.pread(file.fileno(), _PORTION_NBYTES, data_at)
        if not part:
            return False
        if _NEEDED_SYMBOL in before + part:
            return True
        at, before = data_at + len(part), part[-len(_NEEDED_SYMBOL) :]
    return False


def _status(pid: int) -> dict[str, str]:
    lines = read_status(pid)
    if not lines:
        raise NoSuchProcess(f"process {pid} has exited")
    return {text(key): text(value) for key, value in lines.items()}


def tracer(pid: int) -> int:
    """The pid of the debugger that traces *pid*; 0 where there is none."""
    return int(_status(pid).get("TracerPid", "0"))


def lasting_tracer(pid: int) -> int:
    """The same, for one that traces it longer than another vram would."""
    until = time.monotonic() + _PASSING_S
    while (other := tracer(pid)) and time.monotonic() < until:
        time.sleep(_PASSING_S / 20)
    return other


def _argv(pid: int) -> tuple[str, ...]:
    return tuple(os.fsdecode(word) for word in _read(pid, "cmdline").rstrip(b"\0").split(b"\0"))


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(_MAX_FILE_NBYTES)
    except OSError:
        return b""


_YAMA = "/proc/sys/kernel/yama/ptrace_scope"

_SCOPES = {
    "1": "only a parent may attach (kernel.yama.ptrace_scope is 1): use sudo, or let the process allow"
    " it with prctl(PR_SET_PTRACER)",
    "2": "only root may attach (kernel.yama.ptrace_scope is 2): use sudo",
    "3": "nobody may attach until the next boot (kernel.yama.ptrace_scope is 3)",
}


def ptrace_scope(path: str = _YAMA) -> str:
    """The setting of the Yama security module; "0" where it is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "0"


def why_not_traced(path: str = _YAMA) -> str:
    """What to do about a refused attach."""
    return _SCOPES.get(
        ptrace_scope(path), "a container or a security module blocks ptrace here: it needs CAP_SYS_PTRACE"
    )
