"""A host written by hand: everybody whom a ledger names lives here, and signals are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from signal import SIGCONT, SIGSTOP
from typing import Any

from msgspec.structs import replace

from vram.host.ports import Sent, VendorAnswer
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Holder, Ledger
from vram.model.observation import HostFacts, Observation
from vram.model.process import ProcessFacts, ProcessRef

UIDS = {"root": 0, "alice": 1000, "bob": 1001}


class PidHandle:
    def __init__(self, town: Town, pid: int) -> None:
        self.town, self.pid = town, pid

    def pid_in_proc(self) -> int | None:
        return self.pid if self.pid in self.town.living else None

    def send(self, number: int) -> Sent:
        if self.pid not in self.town.living:
            return "gone"
        self.town.signals_sent.append((self.pid, number))
        if number not in (SIGCONT, SIGSTOP):
            self.town.die(self.pid)
        return "sent"

    def ended(self, timeout_s: float = 0.0) -> bool:
        return self.pid not in self.town.living

    def close(self) -> None:
        pass


class Town:
    """Every port that planning and ending need. Who is signalled dies, and frees what is his."""

    def __init__(self, ledger: Ledger, *, returns: dict[int, int] | None = None) -> None:
        self.ledger = ledger
        self.living = {holder.pid: holder for holder in everybody(ledger)}
        self.signals_sent: list[tuple[int, int]] = []
        self.commands: list[tuple[str, ...]] = []
        self.answer = VendorAnswer(0, "GPU 00000000:00:00.0 was successfully reset.")
        self.used = 100 << 30
        self.me = ledger.host
        self._returns = returns or {}
        self._now_s = 0.0
        self.nvml = self.proc = self.signals = self.clock = self.limits = self.vendor = self.drm = self
        self.cgroups, self.counts_device_memory = self, False
        self.drivers: tuple[str, ...] = ()  # no GPU of AMD or Intel

    # ---- ports: proc, signals, clock, limits, vendor, nvml ----

    def facts(self, pid: int | None = None) -> Any:
        return self.me if pid is None else self._about(pid)

    def image(self, pid: int) -> str | None:
        return "code-stack" if pid in self.living else None

    def open(self, pid: int) -> PidHandle | None:
        return PidHandle(self, pid) if pid in self.living else None

    def self_and_ancestors(self) -> frozenset[int]:
        return frozenset((4_000_000,))

    def now(self) -> str:
        return "2026-01-01T00:00:00Z"

    def monotonic(self) -> float:
        """Every look at the clock takes a second: nobody waits here."""
        self._now_s += 1.0
        return self._now_s

    def boot_id(self) -> str:
        return "boot"

    def reset_command(self, gpu: int) -> tuple[str, ...]:
        return ("/usr/bin/nvidia-smi", "--gpu-reset", "-i", str(gpu))

    def run(self, command: Sequence[str], deadline_s: float) -> VendorAnswer:
        self.commands.append(tuple(command))
        return self.answer

    def read(self, deadline_s: float) -> Iterator[Observation]:
        for gpu in self.ledger.gpus:
            memory = MemoryFacts(total=self.used, free=0, used=self.used)
            yield Observation(probe="nvml.memory", gpu=gpu.index, facts=memory)

    # ---- what happens in it ----

    def die(self, pid: int) -> None:
        del self.living[pid]
        self.used -= self._returns.get(pid, 0)

    def _about(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        holder = self.living.get(pid)
        if holder is None:
            return None
        facts = ProcessFacts(
            command=holder.command or "?",
            uid=UIDS.get(holder.user or "", 2000),
            user=holder.user,
            executable=holder.executable,
            state=holder.state or "?",
            exiting=holder.exiting,
            parent=holder.parent,
            age_s=100.0,
        )
        return ProcessRef(pid, holder.started_at), facts


def everybody(ledger: Ledger) -> Iterator[Holder]:
    """Each living holder, once, whatever part it plays."""
    for gpu in ledger.gpus:
        for entry in gpu.entries:
            yield from (each for each in (entry.holder, *entry.co_holders) if each is not None and each.alive)
        yield from (each.holder for each in gpu.open_only if each.holder.alive)


def as_root(facts: HostFacts) -> HostFacts:
    return replace(facts, uid=0, user="root")
