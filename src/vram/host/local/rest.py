"""What is left of a job: which of its ranks live on this machine, and for how long they have not worked.

Asked of jobs of which ranks are missing, so of few, and only then is every process of the machine read.

The scheduler keeps for each thread when it ran last and for how long it ran in all
(/proc/PID/task/TID/sched), so one reading tells how long a process has rested:

- a thread that last ran W seconds ago has used nothing since;
- one that ran since then, as watchdogs do ten times a second, has used no more than in its whole life;
- nor have threads that have ended, and children that it waited for, which its totals still have.

Where all of the second and third kind is no more than a hundredth of W, the process has rested for W.
Where the kernel has no such files, or a thread runs, is stopped, traced or frozen, nothing is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

from vram.host.local.launch import CLAIMS, rank_in
from vram.host.local.workload import processes, uid_in
from vram.model.process import Launcher, ProcessFacts, ProcessRef, RestFacts
from vram.payloads.procfs import ProcessFolder, Stat

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")
IDLE_SHARE = 0.01
# Whatever worked a moment ago: for its sake the machine is not searched.
_MIN_IDLE_S = 1.0
# A launcher starts its ranks one right after the other. Who is older than all by this much is none of them.
_MAX_APART_S = 600.0
_MAX_ENVIRONMENT = 256 * 1024
_MAX_THREADS, _MAX_BELOW = 4096, 4096
_MAX_SCHED = 16 * 1024
_LAST_RAN = rb"se\.exec_start\s*:\s*(\d{1,15})\.(\d{6})\s"
_RAN_FOR = rb"se\.sum_exec_runtime\s*:\s*(\d{1,15})\.(\d{6})\s"
# Where frozen processes sleep, with control groups of version 2 and of version 1.
_FREEZERS = (b"do_freezer_trap", b"__refrigerator", b"get_signal")
Job = tuple[Launcher, str, int]
"""By which launcher, its name, and the uid of all its processes."""


class _Ran(NamedTuple):
    """Since when a thread has not run, at least, and for how long it ran in all."""

    idle_s: float
    cpu_s: float


def rest_of_job(known: Collection[tuple[ProcessRef, ProcessFacts]], root: str = "/proc") -> RestFacts | None:
    """What lives of the job that all of *known* are a part of; None where that is not certain."""
    clock = SchedulerClock.read(root)
    job = _job(known)
    if clock is None or job is None:
        return None
    for process, _ in known:
        idle_s = idle_for(process.pid, clock, root)
        if idle_s is None or idle_s < _MIN_IDLE_S:
            return None
    began = min(process.started_at or 0 for process, _ in known)
    parents = {facts.parent for _, facts in known}
    found = _find_ranks(job, parents, began - int(_MAX_APART_S * TICKS_PER_S), root)
    if found is None or not {process.pid for process, _ in known} <= found.ranks.keys():
        return None
    idle: list[float] = []
    for pid in (*found.ranks, *found.below):
        idle_s = idle_for(pid, clock, root)
        if idle_s is None:
            return None
        idle.append(idle_s)
    return RestFacts(
        tuple(sorted(set(found.ranks.values()))), tuple(sorted(found.ranks)), round(min(idle), 3)
    )


def _job(known: Collection[tuple[ProcessRef, ProcessFacts]]) -> Job | None:
    said = {(facts.launch.by, facts.launch.job, facts.uid) for _, facts in known if facts.launch is not None}
    if len(said) != 1:
        return None
    by, name, uid = said.pop()
    return None if uid is None else (by, name, uid)


# ---- who lives ----


class _Living(NamedTuple):
    ranks: dict[int, int]
    """The rank that each process says it is; also what only inherited that from one."""
    below: set[int]


def _find_ranks(job: Job, parents: Collection[int | None], not_before: int, root: str) -> _Living | None:
    """Everyone of the job, and all that they started; None where one may be there that cannot be read.

    A launcher's children have one parent, also after its death: the same process adopts all of them. So one
    that cannot be read is no rank where its parent is none of *parents*.
    """
    by, name, uid = job
    ranks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder, stat in processes(root):
        if stat.kernel_thread or stat.has_ended:
            continue
        children.setdefault(stat.parent, []).append(folder.pid)
        # To read the environment the kernel takes a lock that a process stuck in the driver may hold.
        environ = None if stat.state == "D" else folder.read("environ", _MAX_ENVIRONMENT)
        if environ is None or _is_overwritten(environ):
            if (
                stat.parent in parents
                and stat.started_at >= not_before
                and _may_be_rank(folder, stat, by, uid)
            ):
                return None
        elif any(word in environ for word in CLAIMS):
            rank = rank_in(environ, by, name)
            if rank is not None and uid_in(folder.status()) == uid:
                ranks[folder.pid] = rank
    below = set(_below(ranks, children))
    return _Living(ranks, below) if len(below) <= _MAX_BELOW else None


def _is_overwritten(environ: bytes) -> bool:
    """Whether it begins otherwise than an environment does, as where a title was written over it."""
    return bool(environ) and b"=" not in environ.partition(b"\0")[0]


def _may_be_rank(folder: ProcessFolder, stat: Stat, by: Launcher, uid: int) -> bool:
    """Whether one whose environment is unknown is of the same user, and leads what ranks lead."""
    led = {"torchrun": stat.session, "mpirun": stat.group}
    return led.get(by, folder.pid) == folder.pid and uid_in(folder.status()) in (uid, None)


def _below(tops: Mapping[int, int], children: Mapping[int, list[int]]) -> Iterator[int]:
    waiting, seen = list(tops), set(tops)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


# ---- for how long it has rested ----


class SchedulerClock:
    """The clocks that `se.exec_start` is read from, one for each processor.

    A processor's clock does not run while it serves interrupts, and while its host runs another guest. So
    times are compared with the one that has lost most: none is taken for longer ago than it was.
    """

    def __init__(self, slowest_s: float, processors: Collection[int], lost_s: Mapping[int, float]) -> None:
        self._slowest_s, self._processors, self._lost_s = slowest_s, processors, lost_s

    @classmethod
    def read(cls, root: str = "/proc") -> SchedulerClock | None:
        """A thread reads its own processor's clock alone: one is started that goes to each and ends."""
        allowed = os.sched_getaffinity(0)
        found: list[float] = []
        thread = Thread(target=_read_clocks, args=(allowed, root, found), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this user may have no more
            return None
        thread.join()
        return cls(min(found), allowed, _lost_s(root)) if len(found) == len(allowed) else None

    def since_s(self, last_ran_s: float, processor: int) -> float | None:
        """At least so long ago; None where nothing is known of that processor."""
        lost_s = 0.0 if processor in self._processors else self._lost_s.get(processor)
        return None if lost_s is None else max(0.0, self._slowest_s - last_ran_s - lost_s)


def _read_clocks(processors: Collection[int], root: str, found: list[float]) -> None:
    with suppress(OSError):  # what it may use was changed meanwhile
        for processor in processors:
            os.sched_setaffinity(0, (processor,))
            own = _sched(_read(f"{root}/thread-self/sched"))
            found += [own[0]] if own else []


def _lost_s(root: str) -> dict[int, float]:
    """What each processor has spent on interrupts and its host on others: its clock lags by no more."""
    pattern = rb"^cpu(\d+)(?: \d+){5} (\d+) (\d+) (\d+)"
    lines = re.findall(pattern, _read(f"{root}/stat"), re.MULTILINE)
    return {int(number): sum(map(int, ticks)) / TICKS_PER_S for number, *ticks in lines}


def idle_for(pid: int, clock: SchedulerClock, root: str = "/proc") -> float | None:
    """For how many seconds *pid* has used at most a hundredth of a processor; None where that is unknown."""
    try:
        with ProcessFolder(root, pid) as folder:
            stat = folder.stat()
            threads = folder.names("task")
            status = folder.status()
            is_frozen = (folder.read("wchan", 256) or b"").startswith(_FREEZERS)
            if stat is None or not 0 < len(threads) <= _MAX_THREADS or is_frozen:
                return None
            if status.get(b"TracerPid") != b"0":
                return None
            ran = [_ran(folder, thread, clock) for thread in threads]
    except OSError:
        return None
    known = [each for each in ran if each is not None]
    return _rested([*known, _ended(stat, known)]) if len(known) == len(ran) else None


def _ran(folder: ProcessFolder, thread: str, clock: SchedulerClock) -> _Ran | None:
    stat = folder.stat(int(thread))
    read = _sched(folder.read(f"task/{thread}/sched", _MAX_SCHED) or b"")
    if stat is None or stat.state != "S" or read is None or not read[0]:
        return None
    idle_s = clock.since_s(read[0], stat.processor)
    return None if idle_s is None else _Ran(idle_s, read[1])


def _ended(stat: Stat, living: Collection[_Ran]) -> _Ran:
    """Threads that have ended, and children that were waited for: it is unknown when these ran."""
    ticks = stat.cpu_ticks + stat.reaped_ticks
    # The kernel rounds each of the four down.
    return _Ran(0.0, max(0.0, (ticks + 4) / TICKS_PER_S - sum(each.cpu_s for each in living)))


def _rested(ran: Collection[_Ran]) -> float:
    """The longest time up to now in which all of *ran* together used no more than IDLE_SHARE of it."""
    longest = used_s = 0.0
    for each in sorted(ran):
        # No process after this one in the order has run for that long.
        if used_s <= IDLE_SHARE * each.idle_s:
            longest = max(longest, each.idle_s)
        used_s += each.cpu_s
    return longest


def _sched(raw: bytes) -> tuple[float, float] | None:
    """When a thread last ran, by its processor's clock, and for how long in all; both in seconds."""
    found = re.search(_LAST_RAN, raw), re.search(_RAN_FOR, raw)
    if not (found[0] and found[1]):
        return None
    last, ran = ((int(each[1]) + int(each[2]) / 1e6) / 1000 for each in found if each)
    return last, ran


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
