"""A program that forces pids to be reused, and lets vram act on the process that had them first.

    python pid_reuse.py TRIES [--by-pid]

Every victim is chosen, ended, and replaced by a newcomer with the very same pid, made by
clone3(set_tid). In turn it is ended, visited and parked by its step, ended by a process that was held
before, and ended by a plan that was checked a moment before the victim was replaced.
Prints how many tries were made, how many were refused, and how many newcomers were hit. With
--by-pid the signal goes to the bare pid, as kill(1) would do it: the control that shows a hit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from vram.errors import NoSuchProcess, WorldChanged
from vram.host.local import LocalHost
from vram.model.plan import Step, StepKind, Target
from vram.reclaim.actions import action
from vram.reclaim.executor import execute
from vram.reclaim.identity import VerifiedProcess, identify, open_verified
from vram.reclaim.plan_file import with_digest

SYS_CLONE3 = 435
AT_ONCE = 250
LIBC = ctypes.CDLL(None, use_errno=True)


class CloneArgs(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack"),
            *("stack_size", "tls", "set_tid", "set_tid_size", "cgroup"),
        )
    )


def born(pid: int = 0) -> int:
    """Make a child that waits for a signal; with *pid*, under that very pid."""
    wanted = (ctypes.c_int * 1)(pid)
    arguments = CloneArgs(exit_signal=signal.SIGCHLD)
    if pid:
        arguments.set_tid, arguments.set_tid_size = ctypes.addressof(wanted), 1
    child = LIBC.syscall(SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if child == 0:
        LIBC.pause()
        os._exit(0)
    if child < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return child


def end(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def step_of(kind: StepKind, target: Target) -> Step:
    return Step(
        kind=kind, target=target, gpus=(0,), predicted_bytes=0, loses="", reversible=False, reason="test"
    )


def is_refused_by_a_step(kind: StepKind, host: LocalHost, target: Target) -> bool:
    try:
        action(kind).apply(host, step_of(kind, target), 0.0)
    except WorldChanged:
        return True
    return False


class Replacing:
    """The machine, on which something happens when the clock is first read: a plan was checked by then,
    and none of its steps was begun."""

    def __init__(self, host: LocalHost, happens: Callable[[], None]) -> None:
        self._host = host
        self._happens: Callable[[], None] | None = happens
        self.clock = self

    def monotonic(self) -> float:
        happens, self._happens = self._happens, None
        if happens:
            happens()
        return time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


def is_refused_by_a_plan(host: LocalHost, target: Target) -> bool:
    """Chosen and checked while it was the victim, acted on when it is the newcomer."""
    pid = target.process.pid

    def replaced() -> None:
        end([pid])
        born(pid)

    plan = with_digest("now", "boot", None, (0,), [step_of("kill", target)])
    try:
        execute(Replacing(host, replaced), plan, used_now=0)  # type: ignore[arg-type]
    except WorldChanged:
        return True
    return False


def is_refused_by_a_hold(held: VerifiedProcess) -> bool:
    with held:
        try:
            held.send(signal.SIGKILL)
        except NoSuchProcess:
            # And without the comparison: the pidfd alone still names the one that is gone.
            return held.handle.send(signal.SIGKILL) == "gone"
    return False


def control_round(count: int) -> tuple[int, int]:
    """What happens to newcomers when a pid is all that is known."""
    victims = [born() for _ in range(count)]
    end(victims)
    newcomers = [born(pid) for pid in victims]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for pid in newcomers:
        os.waitpid(pid, 0)
    return 0, len(newcomers)


def round_of(host: LocalHost, count: int) -> tuple[int, int]:
    """Return how many of *count* tries were refused, and how many newcomers were hit."""
    victims = [born() for _ in range(count)]
    targets = [identify(host, pid) for pid in victims]
    to_hold, planned, *stepped = (targets[at::5] for at in range(5))
    refused = sum(is_refused_by_a_plan(host, target) for target in planned)
    held = [open_verified(host, target) for target in to_hold]
    replaced = [each.process.pid for each in targets if each not in planned]
    end(replaced)
    for pid in replaced:
        born(pid)
    kinds: tuple[StepKind, ...] = ("kill", "trim", "park")
    for kind, group in zip(kinds, stepped, strict=True):
        refused += sum(is_refused_by_a_step(kind, host, target) for target in group)
    refused += sum(map(is_refused_by_a_hold, held))
    touched = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    hit = sum(os.waitid(os.P_PID, pid, touched) is not None for pid in victims)
    end(victims)
    return refused, hit


def main() -> None:
    tries, host = int(sys.argv[1]), LocalHost()
    refused = hit = done = 0
    while done < tries:
        count = min(AT_ONCE, tries - done)
        more_refused, more_hit = control_round(count) if "--by-pid" in sys.argv else round_of(host, count)
        refused, hit, done = refused + more_refused, hit + more_hit, done + count
    print(json.dumps({"tries": done, "refused": refused, "hit": hit}))


if __name__ == "__main__":
    main()
