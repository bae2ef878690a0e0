"""One program that sleeps and wakes as a whole, as its waker knows it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from vram.children import LocalPidHandle
from vram.model.parking import GpuShare
from vram.model.plan import Target
from vram.model.sleeping import Sleeper, SleepOptions, SleepState, WakeReason
from vram.payloads.procfs import read_stat
from vram.reclaim.journal import ProcessClaim
from vram.sleeping import moves, records, turns
from vram.sleeping.signals import StoppedProcess

# A program that uses less of a processor is idle: some wake up now and then to see whether they still have
# to.
IDLE_SHARE, IDLE_SLACK_S = 0.02, 0.01
_TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")


class SleepingProgram:
    """One program that sleeps and wakes as a whole, and the task that leads it."""

    def __init__(
        self, number: int, targets: Sequence[Target], handles: Sequence[LocalPidHandle], options: SleepOptions
    ) -> None:
        self.number = number
        self.targets = tuple(targets)
        self.handles = list(handles)
        self.options = options
        self.shares: tuple[GpuShare, ...] = ()
        self.state: SleepState = "awake"
        self.since = time.time()
        self.asleep: moves.Asleep | None = None
        self.claims: list[ProcessClaim] = []
        self.wakes = 0
        self.last_wake_s: tuple[float, ...] = ()
        self.reason: WakeReason | None = None
        self.wanted_at: float | None = None
        self.made_room_s = 0.0
        """How long others took to make room for it, since it was woken last."""
        self.trouble = ""
        self.woken_at = self.used_at = time.monotonic()
        self.wanted = asyncio.Event()
        self.sleep_asked: asyncio.Future[bool] | None = None
        self.anyway = False
        self.forgotten = False
        self.changed = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None
        self._cpu_s: float | None = None
        self._stopped: list[StoppedProcess] = []

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(handle.pid for handle in self.handles)

    @property
    def nbytes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for share in self.shares:
            found[share.uuid] = found.get(share.uuid, 0) + share.nbytes
        return found

    def want(self, reason: WakeReason) -> None:
        """It is to be awake from now on."""
        if not self.wanted.is_set():
            self.reason, self.wanted_at = reason, time.monotonic()
            self.wanted.set()

    def look_for_work(self, elapsed_s: float) -> None:
        """Note whether it has used a processor since the last look."""
        used = [seen.cpu_ticks / _TICKS_PER_S for pid in self.pids if (seen := read_stat(pid)) is not None]
        cpu_s = sum(used) if len(used) == len(self.handles) else None
        before, self._cpu_s = self._cpu_s, cpu_s
        if before is None or cpu_s is None or cpu_s - before > IDLE_SHARE * elapsed_s + IDLE_SLACK_S:
            self.used_at = time.monotonic()

    def forget_work(self) -> None:
        self._cpu_s, self.used_at = None, time.monotonic()

    def note_stop(self) -> None:
        """Its processes have been stopped."""
        self.forget_stop()
        self._stopped = [StoppedProcess(pid) for pid in self.pids]

    def forget_stop(self) -> None:
        for each in self._stopped:
            each.close()
        self._stopped = []

    def has_ended(self) -> bool:
        return all(handle.ended() for handle in self.handles)

    def release_claims(self) -> None:
        for claim in self.claims:
            claim.close()
        self.claims.clear()

    def close(self) -> None:
        self.release_claims()
        self.forget_stop()
        if self.asleep is not None:
            self.asleep.close()
        for handle in self.handles:
            handle.close()

    def sleeper(self) -> Sleeper:
        return Sleeper(
            targets=self.targets,
            shares=self.shares,
            state=self.state,
            since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since)),
            options=self.options,
            wakes=self.wakes,
            last_wake_s=self.last_wake_s,
            reason=self.reason,
            trouble=self.trouble,
        )

    def record(self) -> records.SleepRecord:
        ignored = self.asleep.ignored if self.asleep is not None else {}
        return records.SleepRecord(
            targets=self.targets,
            shares=self.shares,
            options=self.options,
            ignored=tuple((pid, fd, count) for (pid, fd), count in ignored.items()),
            wakes=self.wakes,
            last_wake_s=self.last_wake_s,
            reason=self.reason,
        )

    def candidate(self, now: float) -> turns.AwakeProgram:
        """What bears on whether it makes room for another."""
        rests_s = now - self.used_at
        return turns.AwakeProgram(
            number=self.number,
            nbytes=self.nbytes,
            used_at=self.used_at,
            awake_s=now - self.woken_at,
            rests_s=rests_s if rests_s >= 0 else None,
            min_awake_s=self.options.min_awake_s,
            may_make_room=self.options.may_make_room,
        )

    def signal_that_waits(self) -> str:
        """The signal that waits for one of its processes; nothing where there is none."""
        return next(filter(None, (each.signal() for each in self._stopped)), "")
