"""Where one experiment is carried out: its processes, its readings, its deadline, and its end.

Whatever happens on it, closing the bench leaves no process behind.
"""

from __future__ import annotations

import time
from types import TracebackType

from vram.host.ports import Host
from vram.lab.actor import Process, Puppet
from vram.lab.answer import NEAR, CannotTell, Takes
from vram.lab.calls import Actor, Budget
from vram.lab.device import Device, Look
from vram.lab.nursery import Nursery
from vram.model.lab import DeviceReading
from vram.units import size

SETTLE_S = 3.0
PAUSE_S = 0.05


class Bench:
    """One attempt at one experiment; CannotTell where less is free than it names."""

    def __init__(self, host: Host, device: Device, nursery: Nursery, takes: Takes, deadline_s: float) -> None:
        self._host, self._device, self._nursery, self._takes = host, device, nursery, takes
        self._deadline = time.monotonic() + deadline_s
        self._budget = Budget(takes.nbytes)
        self._processes: list[Process] = []
        self.readings: list[DeviceReading] = []
        self.disturbance: str | None = None
        self.before = self._read()
        free = self.before.memory.free
        if free < takes.total:
            raise CannotTell(f"it needs {size(takes.total)} of free memory, and {size(free)} are free")

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- for experiments ----

    def actor(self, library: str = "", **environment: str) -> Actor:
        """A process that sees the experiment's GPU as its first and only one.

        With *library* it has imported that; settings of its *environment* are for it alone.
        """
        if environment:
            puppet = Puppet({**self._nursery.environment, **environment})
            puppet.left_s = self.left_s
        else:
            puppet = self._nursery.take(library, self.left_s)
        self._processes.append(puppet)
        return Actor(puppet, self._budget, self._processes.append)

    def holding(self, nbytes: int) -> tuple[Actor, int]:
        """A process with a context and *nbytes* that the device was seen to take; and all that it holds."""
        holder = self.actor()
        holder.context()
        empty = self.look("context")
        holder.alloc(nbytes)
        held = self.look("allocated")
        self.must_show(held, nbytes, since=empty)
        return holder, self.grown(held)

    def look(self, stage: str) -> Look:
        """Read the device, and keep what changed since the experiment began."""
        seen = self._read()
        ours = {process.pid for process in self._processes}
        listed = sum(nbytes for pid, nbytes in seen.charges.items() if pid in ours)
        self.readings.append(DeviceReading(stage, self.grown(seen), listed))
        self._mind_others(seen, ours)
        if self.grown(seen) > self._takes.total + NEAR and self.disturbance is None:
            raise CannotTell(f"it took {size(self.grown(seen))}, more than it names: ended")
        return seen

    def grown(self, seen: Look) -> int:
        """Bytes in use beyond those at the experiment's start."""
        return seen.used - self.before.used

    def must_show(self, seen: Look, nbytes: int, since: Look | None = None) -> None:
        """Go on only if the device shows *nbytes* more: else nothing that follows means anything."""
        grown = seen.used - (since or self.before).used
        if grown < nbytes - NEAR:
            raise CannotTell(f"the device showed {size(grown)} of the {size(nbytes)} that were allocated")

    def state_of(self, pid: int) -> str | None:
        """What the kernel says of a process in one letter: T is stopped, Z is dead and not reaped."""
        found = self._host.proc.facts(pid)
        return found[1].state if found else None

    @property
    def on_wsl(self) -> bool:
        return self._host.facts().wsl

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    # ---- for the engine ----

    def close(self) -> None:
        """End every process of the experiment, and wait until each is gone."""
        for process in reversed(self._processes):
            process.close()
        self._processes.clear()

    def settled(self) -> bool:
        """Whether the device comes back to where it was, once all processes are gone."""
        until = time.monotonic() + SETTLE_S
        while abs(self.grown(self._read())) > NEAR:
            if time.monotonic() >= until:
                return False
            self._host.clock.sleep(PAUSE_S)
        return True

    def _read(self) -> Look:
        return self._device.look(self._host)

    def _mind_others(self, seen: Look, ours: set[int]) -> None:
        for pid in (seen.charges.keys() | self.before.charges.keys()) - ours:
            moved = seen.charges.get(pid, 0) - self.before.charges.get(pid, 0)
            if abs(moved) > NEAR:
                self.disturbance = f"memory of pid {pid}, not ours, moved by {size(abs(moved))} meanwhile"
