"""The CPU time of processes and of those below them: whether what is left of a job still works."""

from __future__ import annotations

import os
from collections.abc import Mapping

from vram.payloads.procfs import ProcessFolder
from vram.policy.policy import Identity

_TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Below one process. A job that has started more is not said to be idle.
_MAX_BELOW = 4096


def cpu_times(processes: Mapping[Identity, int | None]) -> dict[Identity, dict[Identity, float]]:
    """For each of *processes* the seconds that it, the one that started it, and each below these has used.

    Who started it is the pid that it is mapped to. One that has ended, whose pid another has now, or whose
    children cannot be read is left out.
    """
    found = {}
    for each, head in processes.items():
        own = _below(each[0])
        if own is not None and each in own:
            found[each] = {**own, **((_below(head) or {}) if head is not None else {})}
    return found


def _below(top: int) -> dict[Identity, float] | None:
    used: dict[Identity, float] = {}
    waiting = [top]
    while waiting:
        pid = waiting.pop()
        read = _read(pid)
        if read is None:
            if pid == top:
                return None
            continue  # it has ended since its parent was read
        started_at, cpu_s, children = read
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
