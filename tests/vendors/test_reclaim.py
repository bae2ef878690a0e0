"""Freeing on AMD and Intel: ending works as everywhere, and what only NVIDIA can do says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.vendors.conftest import host_of
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import Card, Machine
from vram.errors import CannotPark, UsageError
from vram.reclaim import execute, plan
from vram.reclaim.actions.reset import readiness
from vram.reclaim.device_state import used_bytes
from vram.reclaim.preflight import DriverReport, identify_parkable
from vram.units import GIB

SLEEPER = "print(flush=True)\ninput()"


@pytest.fixture
def card(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return machine.card("amdgpu", "0000:03:00.0", total=24 * GIB, used=4 * GIB)


@pytest.fixture
def worker(machine: Machine, card: Card) -> Iterator[subprocess.Popen[bytes]]:
    """A real process, of which the machine says that it uses the card."""
    line = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        machine.adopt(process.pid)
        machine.client(process.pid, card, Use(vram=4 * GIB))
        yield process
        process.kill()


def test_kill(machine: Machine, card: Card, worker: subprocess.Popen[bytes]) -> None:
    host = host_of(machine)
    draft = plan(only="kill", pids=(worker.pid,), host=host)
    assert [(step.kind, step.predicted_bytes) for step in draft.plan.steps] == [("kill", 4 * GIB)]

    def told(outcome: object) -> None:
        assert worker.wait(PATIENCE_S) != 0

    receipt = execute(draft.plan, host=host, on_outcome=told)
    assert [outcome.status for outcome in receipt.outcomes] == ["done"]
    # The folder's figure does not change by itself: nothing came back, by the device's own word.
    assert receipt.returned_bytes == 0


def test_the_device_is_measured_by_its_own_figure(machine: Machine, card: Card) -> None:
    machine.card("xe", "0000:0a:00.0", tiles=(GIB,))
    host = host_of(machine)
    assert used_bytes(host, (0,)) == 4 * GIB
    machine.write(card, mem_info_vram_used=GIB)
    # One that never tells what is in use does not keep the other from being measured.
    assert used_bytes(host, (0, 1)) == GIB
    assert used_bytes(host, (1,)) is None


def test_parking_is_nvidias(machine: Machine, card: Card, worker: subprocess.Popen[bytes]) -> None:
    host = host_of(machine)
    with pytest.raises(CannotPark, match="not NVIDIA's"):
        plan(only="park", pids=(worker.pid,), host=host)
    with pytest.raises(CannotPark, match="not NVIDIA's"):
        identify_parkable(host, DriverReport(None, {}, {}, {}), worker.pid)
    assert worker.poll() is None


def test_free_parks_nobody_here(machine: Machine, card: Card, worker: subprocess.Popen[bytes]) -> None:
    """An idle process of ours would be parked on NVIDIA's GPU."""
    machine.write(card, gpu_busy_percent=0)
    draft = plan(host=host_of(machine), up_to="park")
    assert [step.kind for step in draft.plan.steps if step.kind != "trim"] == []


def test_reset_is_nvidias(machine: Machine, card: Card) -> None:
    with pytest.raises(UsageError, match="uses the driver amdgpu"):
        readiness(host_of(machine), 0, 20.0)
