"""Attach to another process with ptrace: is it the one that was meant, may we, and is it safe just now?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from vram.errors import AttachDenied, NoSuchProcess, NotReachable
from vram.host.local.seccomp import ThreadLimits
from vram.reach.machines import KNOWN
from vram.reach.ptrace import (
    Identity,
    TargetEnded,
    TargetMemory,
    TraceDenied,
    UnsafeToAttach,
    identity,
)
from vram.reach.script_drop import VisitDrop
from vram.reach.target_process import (
    TargetProcess,
    has_proc,
    lasting_tracer,
    namespace_mismatch,
    pidfd_of,
    tracer,
    why_not_traced,
)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0

Attachment = TypeVar("Attachment")
Drop = TypeVar("Drop", bound=VisitDrop)
Kind = Callable[[TargetProcess, TargetMemory], Attachment]


def why_unavailable(
    process: TargetProcess,
    kind: Kind[Attachment],
    check: Callable[[Attachment], object],
    *,
    same_files: bool = False,
) -> str | None:
    """Why *process* cannot be written to, *check* being the injector's own; None where it can.

    *same_files*: it must see the files that we see.
    Nothing is stopped or changed to find out. Raises AttachDenied where the kernel forbids it.
    """
    mismatch = namespace_mismatch(process.pid, same_files=same_files)
    if mismatch is not None:
        return mismatch
    other = lasting_tracer(process.pid)
    if other:
        raise AttachDenied(
            f"pid {process.pid} is already being traced by pid {other}",
            hint="stop that first, or wait for it",
        )
    try:
        with open_target(process, kind) as attachment:
            check(attachment)
    except TraceDenied as error:
        raise _explain_denial(process, error) from error
    except TargetEnded as error:
        raise NoSuchProcess(f"process {process.pid} has exited") from error
    except UnsafeToAttach as error:
        return f"{error}; {error.hint}" if error.hint else str(error)
    return None


@contextmanager
def attach(
    process: TargetProcess, kind: Kind[Attachment], make_drop: Callable[[], Drop]
) -> Iterator[tuple[Attachment, Drop, int]]:
    """:func:`open_target`, the drop with what shall run there, and a pidfd of *process*.

    What is unsafe or forbidden within is raised as the errors that commands know.
    """
    try:
        with (
            open_target(process, kind) as attachment,
            pidfd_of(process) as pidfd,
            make_drop() as drop,
        ):
            yield attachment, drop, pidfd
    except TraceDenied as error:
        raise _explain_denial(process, error) from error
    except TargetEnded as error:
        raise NoSuchProcess(f"process {process.pid} has exited") from error
    except UnsafeToAttach as error:
        raise NotReachable(f"pid {process.pid} was not touched: {error}", hint=error.hint) from error


@contextmanager
def open_target(process: TargetProcess, kind: Kind[Attachment]) -> Iterator[Attachment]:
    """An Injection, or another *kind* of request, to *process*, not yet made. Raises UnsafeToAttach."""
    machine = os.uname().machine
    if machine not in KNOWN:
        supported = " and ".join(each.name for each in KNOWN.values())
        raise UnsafeToAttach(f"this machine is {machine}", f"{supported} are supported{or_agent(process)}")
    if not has_proc(process.pid, process.pid_inside):
        raise UnsafeToAttach("where it lives there is no /proc, which vram's code needs")
    memory = TargetMemory(process.pid)
    try:
        yield kind(process, memory)
    finally:
        memory.close()


def or_agent(process: TargetProcess) -> str:
    """What else a Python can do, as the end of a hint."""
    return "; have it call vram.agent()" if process.is_python else ""


def verify_identity(process: TargetProcess) -> Identity:
    """The identity of *process* now. Raises TargetEnded where it is not the one that was meant."""
    about = identity(process.pid)
    if about[0] != process.target.process.started_at or about[2] != process.target.uid:
        raise TargetEnded("the pid now belongs to a different process")
    _require_same_limits(about, process.limits)
    return about


def require_same_process(pid: int, about: Identity) -> None:
    """Raise where *pid* is not the process *about* any more, or has given up system calls since."""
    now = identity(pid)
    if now[:3] != about[:3]:
        raise TargetEnded("it started another program or changed its user in the meantime")
    _require_same_limits(now, about[3])


def _require_same_limits(now: Identity, limits: ThreadLimits | None) -> None:
    if now[3] != limits:
        raise UnsafeToAttach("it has given up system calls (seccomp) just now")


def once_it_is_safe(
    attempt: Callable[[], object], until: float, longest_pause_s: float = MAX_PAUSE_S
) -> None:
    """Make the *attempt*; a state that passes is waited for, until then. Raises UnsafeToAttach."""
    pause_s = FIRST_PAUSE_S / 10
    while True:
        try:
            attempt()
        except UnsafeToAttach as error:
            if not error.passing or time.monotonic() + pause_s > until:
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_pause_s)
        else:
            return


def _explain_denial(process: TargetProcess, error: TraceDenied) -> AttachDenied:
    other = tracer(process.pid)
    if other:
        return AttachDenied(f"pid {process.pid} is being traced by pid {other}", hint="stop that first")
    return AttachDenied(f"cannot attach to pid {process.pid}: {error}", hint=why_not_traced())
