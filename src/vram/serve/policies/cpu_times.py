"""The CPU time of processes and of those below them: whether what is left of a job still works."""

from __future__ import annotations

import os
from collections.abc import Iterable

from vram.payloads.procfs import ProcessFolder
from vram.policy.policy import Identity

_TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Below one process. A job that has started more is not said to be idle.
_MAX_BELOW = 4096


def cpu_times(processes: Iterable[Identity]) -> dict[Identity, dict[Identity, float]]:
    """For each of *processes* the seconds that it, and each process below it, has used so far.

    One that has ended, whose pid another has now, or whose children cannot be read is left out.
    """
    found = {each: _below(each) for each in processes}
    return {each: used for each, used in found.items() if used is not None}


def _below(top: Identity) -> dict[Identity, float] | None:
    used: dict[Identity, float] = {}
    waiting = [top[0]]
    while waiting:
        pid = waiting.pop()
        read = _read(pid)
        if read is None:
            if pid == top[0]:
                return None
            continue  # it has ended since its parent was read
        started_at, cpu_s, children = read
        if pid == top[0] and started_at != top[1]:
            return None
        used[pid, started_at] = cpu_s
        waiting += children
        if len(used) > _MAX_BELOW:
            return None
    return used


def _read(pid: int) -> tuple[int, float, list[int]] | None:
    """Its start time, the seconds that all its threads have used, and its children."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            stat = folder.stat()
            # Each thread has the children that it started.
            lists = [folder.read(f"task/{thread}/children") for thread in folder.names("task")]
    except OSError:
        return None
    if stat is None or not lists or all(each is None for each in lists):
        return None
    children = [int(word) for each in lists for word in (each or b"").split()]
    return stat.started_at, stat.cpu_ticks / _TICKS_PER_S, children
