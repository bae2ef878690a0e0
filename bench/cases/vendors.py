"""A machine of 10,000 processes with GPUs of three vendors: NVIDIA's is virtual, the others are folders.

The crowd lies in trees like /proc and /sys, since no test machine has all the cards. Its links
are those of ordinary processes; some hundred of them have AMD's or Intel's GPUs open.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.company import holders
from bench.row import Row
from bench.timing import interleaved, program
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import FIRST_PID, Machine

GIB, MIB = 1024**3, 1024**2
PROCESSES, DESCRIPTORS = 10_000, 30
WITH_AMD, WITH_INTEL = 200, 100
ONE_SECOND = 1.0
LINKS = ("socket:[{}]", "pipe:[{}]", "/dev/null", "anon_inode:[eventpoll]", "/usr/lib/locale/locale-archive")


def run(turns: int) -> list[Row]:
    # As /proc and /sys are: in memory.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, holders(4, 2 * GIB):
        machine = crowd(Path(folder) / "machine")
        machine.admit(*_holders())
        with _roots(machine):
            vram = program("vram") or "vram"
            samples = interleaved({"vram": [vram, "why", "--json"]}, turns=min(turns, 5))
    what = "vram why --json, 10,000 processes, three vendors"
    return [Row(what, samples["vram"].median_s, "s", target=ONE_SECOND)]


def crowd(root: Path) -> Machine:
    """The machine: every process has *DESCRIPTORS* descriptors, a few of them on a GPU."""
    machine = Machine(root)
    amd = machine.card("amdgpu", "0000:03:00.0", total=192 * GIB, used=150 * GIB, gtt=(256 * GIB, 8 * GIB))
    arc = machine.card("xe", "0000:0a:00.0", tiles=(24 * GIB,))
    for at in range(PROCESSES):
        pid = FIRST_PID + at
        machine.process(pid, f"worker {at}")
        taken = 0
        if at < WITH_AMD:
            machine.client(pid, amd, Use(vram=512 * MIB, system=16 * MIB))
            machine.client(pid, amd, Use(), node="card")
            taken = 2
        elif at < WITH_AMD + WITH_INTEL:
            machine.client(pid, arc, Use(vram=64 * MIB))
            taken = 1
        folder = os.open(machine.proc / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY)
        for fd in range(DESCRIPTORS - taken):
            os.symlink(LINKS[fd % len(LINKS)].format(fd), str(100 + fd), dir_fd=folder)
        os.close(folder)
    return machine


def _holders() -> Iterator[int]:
    """The processes that have the virtual GPU open: our children."""
    mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    yield from map(int, mine)


@contextmanager
def _roots(machine: Machine) -> Iterator[None]:
    names = ("VRAM_PROC_ROOT", "VRAM_SYS_ROOT")
    os.environ.update({name: machine.environment[name] for name in names})
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
