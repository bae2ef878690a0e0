"""Which Slurm jobs run on this node: every step has a slurmstepd, whose title names its job.

    slurmstepd: [42.batch]     slurmstepd: [42.0]     slurmstepd: [42.extern]

Nobody is asked: /proc has it, and a slurmctld that does not answer cannot hold us up. Only processes of root
count, and of whoever runs us: a title is easily forged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from vram.payloads.procfs import ProcessFolder, Stat, text

_NAME = "slurmstepd"
_TITLE = re.compile(r"^slurmstepd: \[(?:StepId=)?(\d{1,10})(?:\+\d+)?\.", re.ASCII)
# With control groups of version 2 one of these only keeps Slurm's scope alive.
_KEEPS_SCOPE = "infinity"
_MAX_LENGTH = 4096
UNKNOWN = "?"


class RunningSteps(Struct, frozen=True):
    """The jobs with a step here, the processes below each step, and steps whose job is not known (yet).

    Processes below an unnamed step run for a job too, which is called "?". ``users`` are the users of each
    job's processes, root left out.
    """

    jobs: frozenset[str]
    below: dict[int, str]
    unnamed: tuple[int, ...] = ()
    users: dict[str, frozenset[int]] = {}


def running_steps(root: str = "/proc") -> RunningSteps:
    """Read which jobs run here, and every process that descends from one of their steps."""
    parents: dict[int, int] = {}
    steps: dict[int, str] = {}
    unnamed: list[int] = []
    trusted = {0, os.geteuid()}
    for folder, stat in _processes(root):
        parents[folder.pid] = stat.parent
        if stat.kernel_thread or not _is_step(folder, stat) or _uid(folder) not in trusted:
            continue
        words = text(folder.read("cmdline", _MAX_LENGTH) or b"").split("\0")
        if found := _TITLE.match(words[0]):
            steps[folder.pid] = found[1]
        elif _KEEPS_SCOPE not in words[1:2] and not stat.has_ended:
            unnamed.append(folder.pid)
            steps[folder.pid] = UNKNOWN
    below = _below(parents, steps)
    return RunningSteps(frozenset(steps.values()) - {UNKNOWN}, below, tuple(unnamed), _users(root, below))


def _processes(root: str) -> Iterator[tuple[ProcessFolder, Stat]]:
    for name in os.listdir(root):
        if name.isdigit():
            with suppress(OSError), ProcessFolder(root, int(name)) as folder:
                stat = folder.stat()
                if stat:
                    yield folder, stat


def _is_step(folder: ProcessFolder, stat: Stat) -> bool:
    if stat.name == _NAME:
        return True
    program = (folder.link("exe") or b"").removesuffix(b" (deleted)")
    return program.rpartition(b"/")[2] == _NAME.encode()


def _uid(folder: ProcessFolder) -> int | None:
    words = folder.status().get(b"Uid", b"").split()
    return int(words[0]) if words and words[0].isdigit() else None


def _users(root: str, below: dict[int, str]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for pid, job in below.items():
        with suppress(OSError), ProcessFolder(root, pid) as folder:
            uid = _uid(folder)
            if uid:
                found.setdefault(job, set()).add(uid)
    return {job: frozenset(uids) for job, uids in found.items()}


def _below(parents: dict[int, int], steps: dict[int, str]) -> dict[int, str]:
    """The job of every process that descends from a step."""
    found = dict(steps)
    for pid in parents:
        way = []
        at = pid
        while at in parents and at not in found and at not in way:
            way.append(at)
            at = parents[at]
        if at in found:
            found |= dict.fromkeys(way, found[at])
    return found
