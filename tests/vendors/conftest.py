"""Machines made of folders, looked at with the real probes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vendors.machine import Machine
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.model.observation import Observation, Survey
from vram.probes.survey import survey


class NoDriver:
    """NVIDIA's library is not there: these tests need no answer from it, and no process to ask."""

    def read(self, deadline_s: float) -> Iterator[Observation]:
        return iter(())

    def own_pids(self) -> set[int]:
        return set()


def host_of(machine: Machine) -> LocalHost:
    host = LocalHost(str(machine.proc), sys_root=str(machine.sys))
    host.nvml = NoDriver()  # type: ignore[assignment]
    return host


def take(machine: Machine) -> Survey:
    return survey(host_of(machine), deadline_s=20.0)


def ledger_of(machine: Machine) -> Ledger:
    return build_ledger(take(machine))


def only_gpu(machine: Machine) -> GpuLedger:
    (gpu,) = ledger_of(machine).gpus
    return gpu


def held_by(gpu: GpuLedger, pid: int) -> list[Entry]:
    return [entry for entry in gpu.entries if entry.holder and entry.holder.pid == pid]


def balances(gpu: GpuLedger) -> bool:
    whole = gpu.total_bytes is None or known_bytes(gpu.entries) == gpu.total_bytes
    system = gpu.system
    beside = system is None or system.used_bytes is None or known_bytes(system.entries) == system.used_bytes
    return whole and beside and all(entry.nbytes is None or entry.nbytes >= 0 for entry in gpu.entries)


@pytest.fixture
def machine(tmp_path: Path, native_libraries: Path) -> Machine:
    return Machine(tmp_path / "machine")
