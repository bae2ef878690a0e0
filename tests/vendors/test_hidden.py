"""Where /proc hides other users' processes (hidepid), whoever is not shown is hidden, not dead."""

from __future__ import annotations

from msgspec.structs import replace

from tests.vendors.conftest import balances, held_by, take
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import Machine
from vram.ledger.build import build_ledger
from vram.model.ledger import GpuLedger
from vram.units import GIB


def under_hidepid(machine: Machine) -> GpuLedger:
    survey = take(machine)
    (gpu,) = build_ledger(replace(survey, host=replace(survey.host, hides_processes=True))).gpus
    assert balances(gpu)
    return gpu


def test_a_process_that_only_rocm_lists_is_hidden(machine: Machine) -> None:
    card = machine.card("amdgpu", "0000:03:00.0", used=8 * GIB, total=24 * GIB)
    machine.kfd(5, card, 7 * GIB)
    (entry,) = held_by(under_hidepid(machine), 5)
    assert (entry.kind, entry.nbytes, entry.hidden_by) == ("hidden", 7 * GIB, "permission")
    assert entry.holder is not None
    assert not entry.holder.visible
    assert not any("does not exist" in word for word in entry.evidence)


def test_workers_whose_leader_is_not_shown_are_no_orphans(machine: Machine) -> None:
    card = machine.card("amdgpu", "0000:03:00.0", used=4 * GIB, total=24 * GIB)
    number = machine.client(machine.process(6, group=5, session=5), card, Use(vram=4 * GIB))
    machine.client(machine.process(7, group=5, session=5), card, Use(vram=4 * GIB), number=number)
    assert {entry.kind for entry in held_by(under_hidepid(machine), 6)} == {"process"}
