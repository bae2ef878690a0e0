"""A program that forces pids to be reused, and lets vram end the process that had them first.

    python pid_reuse.py TRIES [--by-pid]

Every victim is chosen, ended, and replaced by a bystander with the very same pid, made by
clone3(set_tid). Half of the time it is replaced before it is held, half of the time after.
Prints how many tries were made, how many were refused, and how many bystanders were hit. With
--by-pid the signal goes to the bare pid, as kill(1) would do it: the control that shows a hit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from vram.errors import NoSuchProcess, WorldChanged
from vram.host.local import LocalHost
from vram.model.plan import Step, Target
from vram.reclaim.identity import capture, hold
from vram.reclaim.steps.kill import Kill

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


def kill_step(target: Target) -> Step:
    return Step(
        kind="kill", target=target, gpus=(0,), predicted_bytes=0, loses="", reversible=False, reason="test"
    )


def is_refused_by_kill(host: LocalHost, target: Target) -> bool:
    try:
        Kill().apply(host, kill_step(target), 0.0)
    except WorldChanged:
        return True
    return False


def control_round(count: int) -> tuple[int, int]:
    """What happens to bystanders when a pid is all that is known."""
    victims = [born() for _ in range(count)]
    end(victims)
    bystanders = [born(pid) for pid in victims]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for pid in bystanders:
        os.waitpid(pid, 0)
    return 0, len(bystanders)


def round_of(host: LocalHost, count: int) -> tuple[int, int]:
    """Return how many of *count* tries were refused, and how many bystanders died."""
    victims = [born() for _ in range(count)]
    targets = [capture(host, pid) for pid in victims]
    held = [hold(host, target) for target in targets[: count // 2]]
    end(victims)
    bystanders = [born(pid) for pid in victims]
    refused = sum(is_refused_by_kill(host, target) for target in targets[count // 2 :])
    for each in held:
        try:
            each.send(signal.SIGKILL)
        except NoSuchProcess:
            refused += 1
        # And without the comparison: the pidfd alone still names the one that is gone.
        assert each.grip.send(signal.SIGKILL) == "gone"
        each.grip.close()
    hit = sum(
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None for pid in bystanders
    )
    end(bystanders)
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
