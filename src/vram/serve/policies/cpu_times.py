"""The CPU time of processes and of those below them: whether what is left of a job still works."""

from __future__ import annotations

import os
from collections.abc import Mapping

from vram.payloads.procfs import ProcessFolder
from vram.policy.engine import CpuTime
from vram.policy.policy import Identity

_TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
# Below one process. A job that has started more is not said to be idle.
_MAX_BELOW = 4096


def cpu_times(processes: Mapping[Identity, int | None]) -> dict[Identity, dict[Identity, CpuTime]]:
    """For each of *processes* the CPU time of itself, of the one that started it, and of each below these.

    Who started it is the pid that it is mapped to. One that has ended, whose pid another has now, or whose
    children cannot be read is left out.
    """
    found = {}
    for each, head in processes.items():
        own = _below(each[0])
        if own is not None and each in own:
            found[each] = {**own, **((_below(head) or {}) if head is not None else {})}
    return found


def _below(top: int) -> dict[Identity, CpuTime] | None:
    used: dict[Identity, CpuTime] = {}
    waiting = [top]
    while waiting:
        pid = waiting.pop()
        read = _read(pid)
        if read is None:
            if pid == top:
                return None
            continue  # it has ended since its parent was read
        started_at, cpu_time, children = read
        used[pid, started_at] = cpu_time
        waiting += children
        if len(used) > _MAX_BELOW:
            return None
    return used


def _read(pid: int) -> tuple[int, CpuTime, list[int]] | None:
    """Its start time, the time of all its threads, and its children."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            stat = folder.stat()
            threads = folder.names("task")
            # Each thread has the children that it started.
            lists = [folder.read(f"task/{thread}/children") for thread in threads]
            waited_s = sum(_waited_s(folder.read(f"task/{thread}/schedstat")) for thread in threads)
    except OSError:
        return None
    if stat is None or not lists or all(each is None for each in lists):
        return None
    children = [int(word) for each in lists for word in (each or b"").split()]
    return stat.started_at, CpuTime(stat.cpu_ticks / _TICKS_PER_S, waited_s), children


def _waited_s(schedstat: bytes | None) -> float:
    """How long a thread waited for a CPU; 0 where the kernel does not count it."""
    words = (schedstat or b"").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0
