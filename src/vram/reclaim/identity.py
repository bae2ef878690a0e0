"""The process that was chosen, or none: opened by pidfd, compared field by field, then acted on.

A pid names the process that has it now. So the pidfd is opened first; what /proc says is read after
that and belongs to it as long as /proc still shows the pidfd under the same pid. exec keeps the
pid and the start time, which is why program and user are compared too, and once more right
before acting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vram.errors import NoSuchProcess, NotPermitted, Protected, TimedOut, WorldChanged
from vram.host.ports import Host, PidHandle, Sent
from vram.model.plan import Target
from vram.model.process import ProcessFacts, ProcessRef
from vram.protected import role

if TYPE_CHECKING:
    from vram.ledger.processes import ProcessMemory
    from vram.model.observation import HostFacts

# Start times count ticks of 10 ms. A process that was seen alive in a later tick than the one it
# was started in cannot be confused: a process that gets its pid after that starts in a later tick too.
OLD_ENOUGH_S = 0.025
# A process that is exiting is gone in a moment, unless the driver holds it up.
ENDING_S = 2.0


class VerifiedProcess:
    """A process whose identity was compared with its target's. Use it with ``with``, or close it.

    ``facts`` are what /proc said when it was compared last.
    """

    facts: ProcessFacts

    def __init__(self, host: Host, target: Target, handle: PidHandle) -> None:
        self._host = host
        self.target = target
        self.handle = handle
        self.recheck()

    def __enter__(self) -> VerifiedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.handle.close()

    def recheck(self) -> None:
        """Compare again, right before acting: exec and setuid keep pid, start time and pidfd."""
        found, facts, image = _read(self._host, self.handle)
        with _unless_exiting(self._host, self.handle):
            _compare(self.target, found, facts, image)
            _may_be_touched(self._host, found.pid, facts)
        self.facts = facts

    def send(self, number: int) -> Sent:
        """Signal this process and no other; "gone" where it has ended meanwhile."""
        self.recheck()
        return self._sent(number)

    def send_again(self, number: int) -> tuple[Sent, bool]:
        """Signal again through the same pidfd; also, whether the process is exiting.

        Such a process cannot be compared as others can: it has no memory any more, and perhaps no
        program. What is left of it must still fit.
        """
        try:
            return self.send(number), False
        except (WorldChanged, Protected):
            found, facts, image = _read(self._host, self.handle)
            if not (facts.exiting or facts.is_dead):
                raise
            _compare(self.target, found, _with_lost_fields(self.target, facts), image or self.target.image)
            return self._sent(number), True

    def _sent(self, number: int) -> Sent:
        sent = self.handle.send(number)
        if sent == "denied":
            raise NotPermitted(
                f"no permission to signal pid {self.target.process.pid}",
                hint="ask its owner",
            )
        return sent

    def ended(self, timeout_s: float = 0.0) -> bool:
        return self.handle.ended(timeout_s)


def identify(host: Host, pid: int) -> Target:
    """Describe the process that has *pid* now, so well that no later one can be taken for it.

    Raises the refusal where no process has it, or where this user may not touch it.
    """
    handle = _open_handle(host, pid)
    try:
        found, facts, image = _read(host, handle)
        if (facts.age_s or 0.0) < OLD_ENOUGH_S:
            handle.ended(OLD_ENOUGH_S)
            found, facts, image = _read(host, handle)
        if (facts.age_s or 0.0) < OLD_ENOUGH_S:
            raise TimedOut(f"pid {pid} has only just started", hint="try again in a moment")
        with _unless_exiting(host, handle):
            _may_be_touched(host, pid, facts)
        return _target(found, facts, image)
    finally:
        handle.close()


def require_certain(me: HostFacts, process: ProcessMemory) -> None:
    """Raise where the pid of *process*, as the driver lists it, may be another process's here."""
    # Under WSL2 the bytes are in doubt, and never the pids: those are read here, from open files.
    if not (process.certain or me.initial_pid_namespace or me.wsl_facts is not None):
        raise NotPermitted(
            f"inside this PID namespace, pid {process.pid} may be a different process",
            hint="run vram on the host",
        )


def open_verified(host: Host, target: Target) -> VerifiedProcess:
    """Open *target* by pidfd, if it still is what it was and may be touched.

    Raises NoSuchProcess where it has ended, WorldChanged where it is another process or
    program now, NotPermitted and Protected where it must be left alone.
    """
    handle = _open_handle(host, target.process.pid)
    try:
        return VerifiedProcess(host, target, handle)
    except BaseException:
        handle.close()
        raise


def _open_handle(host: Host, pid: int) -> PidHandle:
    handle = host.signals.open(pid)
    if handle is None:
        raise NoSuchProcess(f"there is no process {pid}", hint="`vram who` lists those that hold GPU memory")
    return handle


def _read(host: Host, handle: PidHandle) -> tuple[ProcessRef, ProcessFacts, str | None]:
    """What /proc says of the process behind *handle*, and of no other."""
    seen, image = host.proc.facts(handle.pid), host.proc.image(handle.pid)
    # In this order: were the pid handed on while we read, the pidfd would tell it now.
    shown = handle.pid_in_proc()
    # Not by its state: a leader whose threads live on is a zombie in /proc, and no leftover.
    if seen is None or shown is None or handle.ended():
        raise NoSuchProcess(f"process {handle.pid} has exited")
    if shown != handle.pid:
        raise WorldChanged(
            f"pid {handle.pid} is a different process in /proc: it belongs to another PID namespace",
            hint="run vram in that namespace, or on the host",
        )
    return *seen, image


@contextmanager
def _unless_exiting(host: Host, handle: PidHandle) -> Iterator[None]:
    """A process on its way out has no program, memory or control group any more: that is no change."""
    try:
        yield
    except (WorldChanged, Protected):
        seen = host.proc.facts(handle.pid)
        is_exiting = seen is None or seen[1].exiting or seen[1].is_dead
        if handle.ended(ENDING_S if is_exiting else 0.0):
            raise NoSuchProcess(f"process {handle.pid} has exited") from None
        raise


def _with_lost_fields(target: Target, facts: ProcessFacts) -> ProcessFacts:
    # The kernel shows an exiting process in the root of its control groups, or in none.
    return replace(facts, executable=facts.executable or target.executable, cgroup=target.cgroup)


def _compare(target: Target, found: ProcessRef, facts: ProcessFacts, image: str | None) -> None:
    pairs = {
        "start time": (target.process.started_at, found.started_at),
        "PID namespace": (target.process.pid_namespace, found.pid_namespace),
        "user": (target.uid, facts.uid),
        "program": (target.executable, facts.executable),
        "control group": (target.cgroup, facts.cgroup),
        "memory image": (target.image, image),
    }
    changed = [name for name, (was, now) in pairs.items() if was != now]
    if "start time" in changed:
        raise WorldChanged(
            f"pid {found.pid} is a different process now: it was started later",
            hint="make a new plan",
        )
    if changed:
        executed = facts.executable is not None and {"program", "memory image"} & set(changed)
        what = "a different program now" if executed else "not what it was"
        raise WorldChanged(
            f"pid {found.pid} is {what}: its {' and '.join(changed)} changed", hint="make a new plan"
        )


def _may_be_touched(host: Host, pid: int, facts: ProcessFacts) -> None:
    part = role(pid, facts)
    if part:
        raise Protected(f"pid {pid} is {part}; vram never touches it", hint=_instead(pid, facts))
    if pid in host.signals.self_and_ancestors():
        raise Protected(
            f"pid {pid} is vram itself, or the program that runs it",
            hint="run vram from a shell that holds no GPU memory",
        )
    me = host.facts()
    if me.uid not in (0, facts.uid):
        raise NotPermitted(
            f"pid {pid} belongs to {facts.user or 'another user'}",
            hint="ask its owner; root can act on it by naming the pid",
        )
    if facts.executable is None:
        # Without its program it is unknown whether it is a part of the system.
        raise Protected(
            f"the program of pid {pid} is not readable, so vram does not know what it is",
            hint="run vram as its owner or as root, on the host",
        )


def _instead(pid: int, facts: ProcessFacts) -> str:
    """What to do about a process that must be left alone."""
    if pid <= 1:
        return "killing it would end the whole machine or container; `vram who` shows who holds memory"
    if facts.executable is None:
        return "no signal ends it; `vram who` shows who holds memory"
    return "restart that service instead"


def _target(found: ProcessRef, facts: ProcessFacts, image: str | None) -> Target:
    return Target(
        process=found,
        uid=-1 if facts.uid is None else facts.uid,
        user=facts.user,
        command=" ".join(facts.argv) or facts.command,
        executable=facts.executable,
        cgroup=facts.cgroup,
        image=image,
    )
