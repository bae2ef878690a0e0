"""GPUs whose memory is the machine's: what the CPU's programs use is an entry, and explains itself."""

from __future__ import annotations

import pytest

from tests.ledger.world import RESERVED, World
from vram.diagnosis.engine import diagnose
from vram.diagnosis.verdict import judge, overall
from vram.ledger.build import build_ledger
from vram.model.ledger import Entry, GpuLedger
from vram.units import GIB, MIB


def balanced(world: World, index: int = 0) -> GpuLedger:
    gpu = build_ledger(world.survey()).gpus[index]
    assert sum(entry.nbytes or 0 for entry in gpu.entries) == gpu.total_bytes
    return gpu


def one(gpu: GpuLedger, kind: str) -> Entry:
    (entry,) = [each for each in gpu.entries if each.kind == kind]
    return entry


def test_the_total_is_the_systems_and_what_no_gpu_program_is_charged_for_is_the_cpus():
    gpu = balanced(World().shared(available=80 * GIB).cuda(7, 30 * GIB))
    assert gpu.total_bytes == 120 * GIB
    assert one(gpu, "process").nbytes == 30 * GIB
    cpu = one(gpu, "cpu")
    assert (cpu.nbytes, cpu.holders, cpu.hidden_by) == (10 * GIB, (), None)
    assert "of that the kernel names: CPU programs 6.0 GiB, the kernel 1.0 GiB" in cpu.evidence
    assert one(gpu, "free").nbytes == 80 * GIB
    assert [(note.code, note.text) for note in gpu.notes] == [
        ("system-memory", "the total is the system's memory; CPU programs and kernel use 10.0 GiB")
    ]
    assert not gpu.has_own_memory


def test_an_idle_one_is_clean_and_nothing_is_wrong_with_it():
    ledger = build_ledger(World().shared(available=111 * GIB).survey())
    assert diagnose(ledger) == ()
    assert overall(judge(ledger)) == "clean"


def test_a_ghost_is_a_ghost_there_too():
    world = World().shared(available=80 * GIB).charge(7, 30 * GIB).process(8, parent=1, forked=True)
    ledger = build_ledger(world.files(8, family=7).survey())
    (found,) = [finding for finding in diagnose(ledger) if finding.code == "VR101"]
    assert found.nbytes == 30 * GIB
    assert overall(judge(ledger, leftovers=True)) == "held"


def test_charges_that_exceed_what_is_in_use_are_cut_and_leave_nothing_to_the_cpu():
    gpu = balanced(World().shared(available=100 * GIB).cuda(7, 30 * GIB))
    process = one(gpu, "process")
    assert (process.nbytes, process.claimed) == (20 * GIB, 30 * GIB)
    assert not gpu.of_kind("cpu")


def test_a_process_without_a_figure_is_named_and_gets_no_bytes_of_others():
    """Of 9 GiB that programs on the processor have, none is counted as its memory."""
    gpu = balanced(World().shared(available=111 * GIB).cuda(7, None))
    assert one(gpu, "process").nbytes is None
    assert one(gpu, "cpu").nbytes == 9 * GIB


def test_lists_that_cannot_be_read_are_said_of_the_cpus_part():
    world = World().shared(available=100 * GIB)
    world.unlisted("failed")
    cpu = one(balanced(world), "cpu")
    assert any("lists could not be read" in words for words in cpu.evidence)


@pytest.mark.parametrize(
    ("session", "kind"),
    [(500, None), (900, "exported")],
    ids=["of the maker's session: it is charged", "of nobody's who may have made it: likely a ghost"],
)
def test_an_exported_allocation_beside_a_process_that_may_have_made_it(session: int, kind: str | None):
    """Room proves nothing where the CPU's bytes are beside it: who holds it decides."""
    world = World().shared(available=80 * GIB).cuda(7, 30 * GIB, session=500)
    world.process(8, session=session).export(8, 2 * GIB)
    gpu = balanced(world)
    found = gpu.of_kind("exported")
    assert [entry.confidence for entry in found] == (["likely"] if kind else [])
    assert [each.exported_bytes for each in gpu.open_only] == ([] if kind else [2 * GIB])


def test_an_exported_allocation_that_nobody_listed_can_have_made_is_held_for_sure():
    world = World().shared(available=80 * GIB).cuda(7, 1 * GIB, session=500)
    gpu = balanced(world.process(8, session=500).export(8, 2 * GIB))
    assert one(gpu, "exported").confidence == "fact"
    assert one(gpu, "cpu").nbytes == 37 * GIB


def test_two_gpus_on_one_memory_name_each_others_part():
    world = World().shared(available=80 * GIB).shared(1, available=80 * GIB)
    world.cuda(7, 10 * GIB).cuda(8, 4 * GIB, gpu=1)
    assert "4.0 GiB of it is held on GPU 1" in one(balanced(world), "cpu").evidence
    assert "10.0 GiB of it is held on GPU 0" in one(balanced(world, 1), "cpu").evidence


def test_pages_of_the_kernel_on_a_gpus_own_node_are_no_hidden_memory():
    """On a Grace Hopper the driver's figure has the cached files of the node in it."""
    world = World(uid=1000).on_node(used=40 * GIB, use=(GIB, 20 * GIB, 100 * MIB))
    gpu = balanced(world.cuda(7, 18 * GIB, uid=1000))
    assert one(gpu, "cpu").nbytes == 21 * GIB + 100 * MIB
    (rest,) = (*gpu.of_kind("hidden"), *gpu.of_kind("unattributed"))
    assert (rest.nbytes or 0) < GIB
    assert one(gpu, "reserved").nbytes == RESERVED
    assert any("cached files 20.0 GiB" in words for words in one(gpu, "cpu").evidence)
    assert gpu.notes[0].text.startswith("the total is node 1 of the system's memory; CPU programs")
    assert gpu.has_own_memory


def test_no_more_of_a_node_is_the_kernels_than_no_process_is_charged_for():
    gpu = balanced(World().on_node(used=20 * GIB, use=(8 * GIB, 8 * GIB, 0)).cuda(7, 18 * GIB))
    assert one(gpu, "cpu").nbytes == 2 * GIB
    assert one(gpu, "process").nbytes == 18 * GIB
