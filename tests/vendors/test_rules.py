"""Which causes are told of AMD's and Intel's GPUs, and which are NVIDIA's alone."""

from __future__ import annotations

import os

from msgspec.structs import replace

from tests.vendors.conftest import ledger_of, take
from tests.vendors.fdinfo_styles import Use
from tests.vendors.machine import Card, Machine
from vram.diagnosis import verdict
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.files import UnreadableFacts
from vram.model.finding import Finding
from vram.model.observation import Observation
from vram.units import GIB, MIB


def amd(machine: Machine, used: int) -> Card:
    return machine.card("amdgpu", "0000:03:00.0", total=24 * GIB, used=used)


def findings(machine: Machine) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(ledger_of(machine))}


def commands(finding: Finding) -> list[str]:
    return [remedy.command for remedy in finding.remedies]


def test_in_use_offers_what_the_vendor_can_do(machine: Machine) -> None:
    """Parking is NVIDIA's; trimming reaches PyTorch on ROCm too; nothing of that is known for Intel."""
    machine.client(machine.process(5), amd(machine, GIB), Use(vram=GIB))
    machine.client(machine.process(6), machine.card("xe", "0000:0a:00.0", tiles=(GIB,)), Use(vram=MIB))
    told = {finding.pids: commands(finding) for finding in diagnose(ledger_of(machine))}
    assert told[(5,)] == ["vram trim 5", "vram kill 5"]
    assert told[(6,)] == ["vram kill 6"]


def test_causes_that_need_no_nvidia(machine: Machine) -> None:
    card = amd(machine, 9 * GIB)
    machine.client(machine.process(5, state="T"), card, Use(vram=GIB))
    machine.client(machine.process(6, executable="/opt/old/train (deleted)"), card, Use(vram=2 * GIB))
    number = machine.client(machine.process(7), card, Use(vram=GIB))
    machine.client(machine.process(8, parent=7), card, Use(vram=GIB), number=number)
    machine.client(machine.process(9, state="D"), card, Use(vram=GIB))
    number = machine.client(machine.process(11, group=10), card, Use(vram=GIB))
    machine.client(machine.process(12, group=10), card, Use(vram=GIB), number=number)
    told = findings(machine)
    assert set(told) == {"VR101", "VR102", "VR106", "VR201", "VR202", "VR204", "VR206"}
    assert told["VR101"].pids == (11, 12)
    assert told["VR102"].pids == (7, 8)
    assert told["VR106"].nbytes == 3 * GIB


def test_the_kernel_log_is_searched_for_the_gpus_own_driver(machine: Machine) -> None:
    """Xid lines are NVIDIA's."""
    card = amd(machine, 2 * GIB)
    machine.client(machine.process(9, state="D"), card, Use(vram=GIB))
    machine.kfd(10, card, GIB)  # it is gone
    arc = machine.card("xe", "0000:0a:00.0", tiles=(GIB,))
    machine.client(machine.process(11, state="D"), arc, Use(vram=MIB))
    told = [
        (finding.code, finding.gpus, remedy.command, "Xid" in remedy.text)
        for finding in diagnose(ledger_of(machine))
        for remedy in finding.remedies
        if "dmesg" in remedy.command
    ]
    log = "sudo dmesg --ctime | grep -iE"
    # Who does not see all processes is told to look as root before that.
    dead = [("VR105", (0,), f"{log} 'amdgpu|kfd'", False)] if os.geteuid() == 0 else []
    assert sorted(told) == [
        *dead,
        ("VR202", (0,), f"{log} 'amdgpu|kfd'", False),
        ("VR202", (1,), rf"{log} '\bxe\b'", False),
    ]


def test_a_zombies_workers(machine: Machine) -> None:
    card = amd(machine, GIB)
    machine.process(5, state="Z")
    number = machine.client(machine.process(6, group=5), card, Use(vram=GIB))
    machine.client(machine.process(7, group=5), card, Use(vram=GIB), number=number)
    assert findings(machine)["VR203"].pids == (6, 7)


def test_a_dmabuf_is_a_holder_here_too(machine: Machine) -> None:
    amd(machine, 3 * GIB)
    machine.dmabuf(machine.process(5), 2 * GIB, "amdgpu")
    assert findings(machine)["VR104"].pids == (5,)


def test_small_contexts_are_nvidias(machine: Machine) -> None:
    """Five programs of 300 MiB each: what a context costs on this card nobody has measured."""
    card = amd(machine, 1500 * MIB)
    for pid in range(5, 10):
        machine.client(machine.process(pid), card, Use(vram=300 * MIB))
    assert set(findings(machine)) == {"VR206"}


def test_hidden_by_permission(machine: Machine) -> None:
    card = amd(machine, 9 * GIB)
    machine.client(machine.process(5), card, Use(vram=GIB))
    survey = take(machine)
    closed = Observation(
        probe="proc.unreadable", status="denied", facts=UnreadableFacts(processes=3, users=("bob",))
    )
    ledger = build_ledger(replace(survey, observations=(*survey.observations, closed)))
    told = {finding.code: finding.nbytes for finding in diagnose(ledger)}
    assert told["VR302"] == 8 * GIB


def test_clean_where_nobody_is(machine: Machine) -> None:
    """What the driver takes for itself makes no GPU dirty; what is not told makes none clean."""
    amd(machine, 300 * MIB)
    machine.card("xe", "0000:0a:00.0", tiles=(8 * GIB,))
    machine.card("i915", "0000:0b:00.0")
    machine.card("i915", "0000:00:02.0")
    by_name = {
        gpu.uuid: answer.verdict
        for gpu, answer in zip(
            ledger_of(machine).gpus, verdict.judge(ledger_of(machine), leftovers=False), strict=True
        )
    }
    assert by_name == {
        "PCI-0000:00:02.0": "clean",
        "PCI-0000:03:00.0": "clean",
        "PCI-0000:0a:00.0": "unknown",
        "PCI-0000:0b:00.0": "unknown",
    }


def test_held_where_somebody_is(machine: Machine) -> None:
    machine.process(5)
    machine.client(5, machine.card("i915", "0000:00:02.0"), Use(system=GIB))
    machine.client(5, machine.card("i915", "0000:0b:00.0"), Use(vram=GIB))
    answers = verdict.judge(ledger_of(machine))
    assert [(answer.verdict, answer.held_bytes) for answer in answers] == [("held", GIB), ("held", GIB)]
    assert [answer.verdict for answer in verdict.judge(ledger_of(machine), leftovers=True)] == [
        "clean",
        "unknown",
    ]


def test_a_card_that_may_not_be_read_or_answers_nonsense(machine: Machine) -> None:
    machine.write(amd(machine, 0), mem_info_vram_total="?")
    assert "VR405" in findings(machine)
    (gpu,) = ledger_of(machine).gpus
    assert (gpu.total_bytes, gpu.status) == (None, "failed")


def test_a_card_that_was_pulled_out(machine: Machine) -> None:
    """A process still has it open; sysfs fails, or shows it no more."""
    failing = amd(machine, 0)
    (failing.folder / "mem_info_vram_used").unlink()
    (failing.folder / "mem_info_vram_used").symlink_to("/proc/self/mem")  # reads as EIO
    machine.client(machine.process(5), failing, Use(vram=GIB))
    missing = failing._replace(address="0000:99:00.0")
    machine.client(machine.process(6), missing, Use(vram=2 * GIB))
    first, second = ledger_of(machine).gpus
    assert (first.status, first.total_bytes) == ("lost", 24 * GIB)
    assert (second.status, second.total_bytes, second.uuid) == ("lost", None, "PCI-0000:99:00.0")
    assert [entry.nbytes for entry in second.entries] == [2 * GIB]
    lost = [finding.gpus for finding in diagnose(ledger_of(machine)) if finding.code == "VR404"]
    assert lost == [(0,), (1,)]
