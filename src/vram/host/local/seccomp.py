"""System calls that a process has given up (seccomp), read from /proc alone: nothing is stopped to find out.

A thread that makes a call which its filters forbid is killed, and mostly its whole process with it. What a
filter forbids cannot be read without stopping the thread, and even that may kill it: after a stop the kernel
has a thread that waited with a timeout call restart_syscall. So a process with filters is left alone, unless
they are those of its container. See docs/decisions/31-given-up-system-calls.md.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from vram.model.process import GivenUp
from vram.payloads.procfs import ProcessFolder

_STRICT, _FILTERS = 1, 2  # of "Seccomp:"
_SYS_ADMIN = 1 << 21
_NAMESPACES = ("mnt", "pid")


class ThreadLimits(NamedTuple):
    """What a thread and its children can never get back. None: this kernel does not say."""

    mode: int = 0
    filters: int | None = None
    """How many, since Linux 5.9. Each is inherited, and none can be removed."""
    no_new_privileges: bool | None = None
    capabilities: int | None = None
    """The bounding set: what is not in it can never be had again."""

    @property
    def imposed(self) -> bool:
        """Whether its filters were set by root before its program started, as container runtimes do.

        Who sets a filter must have given up new privileges for good, or have CAP_SYS_ADMIN. Where a thread
        has not done the former and can never have the latter, another process did it.
        """
        without = self.capabilities is not None and not self.capabilities & _SYS_ADMIN
        return self.no_new_privileges is False and without


def given_up(pid: int, proc: str = "/proc") -> GivenUp | None:
    """What forbids to run code in *pid*; None where no call is forbidden to it, or only what is to us.

    Where vram and *pid* are in one container and have its filters alone, vram's own threads, files and
    sockets have shown that these do not kill.
    """
    limited = limited_threads(pid, proc)
    if not limited:
        return None
    own = _own(proc)
    if all(each == own and _is_containers(each, proc) for each in limited) and is_beside_us(pid, proc):
        return None
    return "strict" if any(each.mode == _STRICT for each in limited) else "filters"


def given_up_since_start(pid: int, proc: str = "/proc") -> GivenUp | None:
    """What forbids to have the driver work in *pid*: filters that were not there when its program started.

    Under the others the driver has started in it, and has opened its files and mapped its memory.
    """
    limited = [each for each in limited_threads(pid, proc) if each.mode != _FILTERS or not each.imposed]
    return given_up(pid, proc) if limited else None


def main_thread_limits(pid: int, proc: str = "/proc") -> ThreadLimits | None:
    """Those of the first thread of *pid*; None where it has ended."""
    try:
        with ProcessFolder(proc, pid) as folder:
            return read_limits(folder)
    except OSError:
        return None


def _own(proc: str) -> ThreadLimits | None:
    try:
        return main_thread_limits(int(os.readlink(f"{proc}/self")), proc)
    except (OSError, ValueError):
        return None


def limited_threads(pid: int, proc: str = "/proc") -> set[ThreadLimits]:
    """The limits of those threads of *pid* that have any: filters are a thread's own."""
    try:
        with ProcessFolder(proc, pid) as folder:
            threads = [None, *(int(name) for name in folder.names("task"))]
            found = {read_limits(folder, thread) for thread in threads}
    except OSError:
        return set()
    return {each for each in found if each is not None and each.mode}


def read_limits(folder: ProcessFolder, thread: int | None = None) -> ThreadLimits | None:
    """Those of one *thread*, None: the first one; None where it has ended."""
    lines = folder.status(thread)
    if not lines:
        return None
    privileges = _number(lines.get(b"NoNewPrivs"))
    return ThreadLimits(
        mode=_number(lines.get(b"Seccomp")) or 0,
        filters=_number(lines.get(b"Seccomp_filters")),
        no_new_privileges=None if privileges is None else bool(privileges),
        capabilities=_number(lines.get(b"CapBnd"), 16),
    )


def _is_containers(limits: ThreadLimits, proc: str) -> bool:
    """Whether filters that vram has too are the container's, rather than some program's that started vram."""
    if limits.mode != _FILTERS:
        return False
    return limits.imposed or (limits.filters is not None and limits == main_thread_limits(1, proc))


def is_beside_us(pid: int, proc: str = "/proc") -> bool:
    """Whether it is in our container: other containers of the same shape may forbid more."""
    try:
        return all(
            os.stat(f"{proc}/{pid}/ns/{name}").st_ino == os.stat(f"{proc}/self/ns/{name}").st_ino
            for name in _NAMESPACES
        )
    except OSError:
        return False


def _number(word: bytes | None, base: int = 10) -> int | None:
    try:
        return None if word is None else int(word, base)
    except ValueError:
        return None
