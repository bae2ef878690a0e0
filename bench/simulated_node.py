"""A node of many GPUs as a week of readings shows it: jobs that come, grow, idle, end and leave ghosts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec.structs import replace

from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.moment import Moment
from vram.model.observation import HostFacts
from vram.units import GIB, MIB

TOTAL = 141 * GIB
USERS = ("ada", "ben", "cleo", "dan", "eva", "finn", "gus", "hana")
NO_BOOT = "00000000-0000-0000-0000-000000000000"


class _Job:
    def __init__(self, pid: int, tick: int, choice: random.Random, gpus: tuple[int, ...], lasts: int) -> None:
        self.uid = choice.randrange(len(USERS))
        self.holder = Holder(
            pid=pid,
            started_at=tick * 1000 + pid % 1000,
            user=USERS[self.uid],
            uid=1000 + self.uid,
            command=f"python train.py --config c/{choice.randrange(40)}.yaml --seed {choice.randrange(100)}",
            alive=True,
            state=choice.choice("SSSR"),
        )
        self.gpus, self.ends = gpus, tick + lasts
        self.nbytes = choice.randrange(1, 30) * GIB
        self.grows = choice.random() < 0.3  # eager: another size with every reading


class SimulatedNode:
    """Readings of *gpus* GPUs every *interval_s* seconds; *short* processes come and go each minute."""

    def __init__(self, gpus: int = 16, interval_s: float = 10.0, short: int = 2, seed: int = 1) -> None:
        self._choice = random.Random(seed)
        self._gpus, self.interval_s, self._short = gpus, interval_s, short
        self._jobs: list[_Job] = []
        self._ghosts: list[tuple[int, int, Holder, int]] = []
        self._pid = 1000
        self._host = HostFacts(name="node", kernel="6.18", user="root", uid=0, initial_pid_namespace=True)

    def readings(self, seconds: float, start: float = 1_790_000_000.0) -> Iterator[tuple[Ledger, Moment]]:
        for tick in range(int(seconds / self.interval_s)):
            after = tick * self.interval_s
            yield self.ledger(tick), Moment(start + after, 5000.0 + after, NO_BOOT)

    def ledger(self, tick: int) -> Ledger:
        """What the next reading shows."""
        self._come_and_go(tick)
        entries: list[list[Entry]] = [
            [Entry(kind="reserved", nbytes=615 * MIB), Entry(kind="overhead", nbytes=9 * MIB)]
            for _ in range(self._gpus)
        ]
        for job in self._jobs:
            if job.grows:
                job.nbytes += self._choice.randrange(-64, 65) * 2 * MIB
                job.nbytes = max(GIB, job.nbytes)
            for gpu in job.gpus:
                entries[gpu].append(
                    Entry(kind="process", nbytes=job.nbytes // len(job.gpus), holder=job.holder)
                )
        for gpu, dead_pid, holder, _ in self._ghosts:
            entries[gpu].append(Entry(kind="orphaned", nbytes=2 * GIB, holder=holder, charged_pid=dead_pid))
        return Ledger(
            taken_at="",
            host=self._host,
            gpus=tuple(_gpu(at, theirs, tick) for at, theirs in enumerate(entries)),
        )

    def _come_and_go(self, tick: int) -> None:
        ended = [job for job in self._jobs if job.ends <= tick]
        self._jobs = [job for job in self._jobs if job.ends > tick]
        for job in ended:
            if len(job.gpus) > 1 and self._choice.random() < 0.02:
                until = tick + self._choice.randrange(6, 3000)
                holder = replace(job.holder, pid=job.holder.pid + 1, command=f"{job.holder.command} (worker)")
                self._ghosts.append((job.gpus[0], job.holder.pid, holder, until))
        self._ghosts = [ghost for ghost in self._ghosts if ghost[3] > tick]
        while len(self._jobs) < self._gpus * 3:
            several = self._choice.random() < 0.2
            first = self._choice.randrange(self._gpus)
            gpus = tuple(sorted({(first + at) % self._gpus for at in range(8 if several else 1)}))
            self._start(tick, gpus, self._choice.randrange(30, 6000))
        for _ in range(round(self._short * self.interval_s / 60)):
            self._start(tick, (self._choice.randrange(self._gpus),), 1)

    def _start(self, tick: int, gpus: tuple[int, ...], lasts: int) -> None:
        self._pid += 1
        self._jobs.append(_Job(self._pid % (1 << 22), tick, self._choice, gpus, lasts))


def _gpu(index: int, entries: list[Entry], tick: int) -> GpuLedger:
    used = sum(entry.nbytes or 0 for entry in entries)
    total = max(TOTAL, used)
    utilization = 0 if (tick // 360 + index) % 3 == 0 else 90
    return GpuLedger(
        index=index,
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        name="NVIDIA H200",
        total_bytes=total,
        entries=(*entries, Entry(kind="free", nbytes=total - used)),
        facts=GpuFacts(uuid=f"GPU-{index}", name="NVIDIA H200", utilization=utilization),
    )
