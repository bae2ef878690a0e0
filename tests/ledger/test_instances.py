"""A GPU that MIG divides: every instance balances, and with what is in none of them so does the GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.world import CONTEXT, OVERHEAD, RESERVED, World
from vram.cli.arguments import select_gpus
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.ledger.instances import alone
from vram.model.ledger import Entry, GpuLedger, known_bytes
from vram.units import GIB

Shape = dict[str, int]


def ledger(world: World) -> GpuLedger:
    return build_ledger(world.survey()).gpus[0]


def sums(gpu: GpuLedger) -> dict[int | None, int]:
    """Bytes of every instance; None is what lies in none."""
    found: dict[int | None, int] = {}
    for entry in gpu.entries:
        found[entry.gpu_instance] = found.get(entry.gpu_instance, 0) + entry.nbytes
    return found


def kinds(gpu: GpuLedger, instance: int | None) -> dict[str, int]:
    return {entry.kind: entry.nbytes for entry in gpu.entries if entry.gpu_instance == instance}


def two_instances() -> World:
    first, second = 4 * GIB + CONTEXT, 2 * GIB + CONTEXT
    world = World().divided(devices=3, used=first + second + 2 * OVERHEAD)
    world.mig(0, 1, total=48 * GIB, used=first + OVERHEAD)
    world.mig(1, 3, total=24 * GIB, used=second + OVERHEAD)
    world.mig(2, 3, compute=1, total=24 * GIB, used=second + OVERHEAD)
    world.process(100).charge(100, first, instance=1, compute=0).files(100, family=100)
    world.process(200).charge(200, second, instance=3, compute=1).files(200, family=200)
    return world


def test_instances_and_what_is_in_none_sum_to_the_gpu() -> None:
    gpu = ledger(two_instances())
    assert sums(gpu) == {1: 48 * GIB, 3: 24 * GIB, None: 28 * GIB}
    assert sum(sums(gpu).values()) == gpu.total_bytes == 100 * GIB
    assert [each.total_bytes for each in gpu.instances] == [48 * GIB, 24 * GIB]
    assert kinds(gpu, None) == {"reserved": RESERVED, "unassigned": 28 * GIB - RESERVED}
    assert kinds(gpu, 1) == {
        "process": 4 * GIB + CONTEXT,
        "overhead": OVERHEAD,
        "free": 44 * GIB - CONTEXT - OVERHEAD,
    }


def test_compute_instances_that_share_memory_are_one_balance() -> None:
    gpu = ledger(two_instances())
    shared = gpu.instances[1]
    assert [(each.index, each.compute_instance) for each in shared.devices] == [(1, 0), (2, 1)]
    (worker,) = (entry for entry in gpu.entries if entry.holder and entry.gpu_instance == 3)
    assert (worker.holder.pid if worker.holder else None, worker.compute_instance) == (200, 1)


def test_an_instance_alone_is_a_ledger_of_its_own() -> None:
    one = alone(ledger(two_instances()), 3)
    assert (one.mig, one.name, one.uuid) == ("0:1", "NVIDIA Test MIG 3g", "MIG-0-3-0")
    assert known_bytes(one.entries) == one.total_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("words", "mig", "uuid"),
    [
        (["0:2"], "0:2", "MIG-0-3-1"),
        (["MIG-0-3-1"], "0:2", "MIG-0-3-1"),
        (["0:2", "0:1"], "0:1", "MIG-0-3-0"),
    ],
)
def test_whoever_names_a_device_is_answered_in_its_name(words: list[str], mig: str, uuid: str) -> None:
    """Those that share an instance have one ledger; it is not another device's."""
    (one,) = select_gpus(build_ledger(two_instances().survey()), words).gpus
    assert (one.mig, one.uuid, one.total_bytes) == (mig, uuid, 24 * GIB)


def test_a_gpu_without_instances_has_nothing_free() -> None:
    """The driver calls it free, but no program can have it."""
    gpu = ledger(World().divided(devices=0))
    assert kinds(gpu, None) == {"reserved": RESERVED, "unassigned": 100 * GIB - RESERVED}


def test_where_the_devices_are_not_told_nothing_is_called_unassigned() -> None:
    gpu = ledger(World().divided(devices=None))
    assert kinds(gpu, None) == {"reserved": RESERVED, "free": 100 * GIB - RESERVED}


def test_what_the_gpu_uses_outside_of_instances_is_the_driver_s() -> None:
    world = World().divided(devices=1, used=GIB).mig(0, 1, total=50 * GIB, used=0)
    outside = kinds(ledger(world), None)
    assert outside["overhead"] == GIB
    assert sum(outside.values()) == 50 * GIB


def test_an_instance_that_tells_nothing_is_named_without_a_balance() -> None:
    world = World().divided(devices=2).mig(0, 1, total=50 * GIB).mig(1, 2)
    gpu = ledger(world)
    assert [each.total_bytes for each in gpu.instances] == [50 * GIB, None]
    (unused,) = (entry for entry in gpu.entries if entry.kind == "unassigned")
    assert unused.confidence == "unknown"
    assert known_bytes(gpu.entries) == gpu.total_bytes


def test_where_the_whole_gpu_is_withheld_its_instances_still_balance() -> None:
    world = World(uid=1000, initial_pid_namespace=False).divided(devices=1, used=None)
    world.mig(0, 1, total=50 * GIB, used=4 * GIB)
    gpu = ledger(world)
    assert (gpu.total_bytes, gpu.status) == (None, "denied")
    assert sums(gpu) == {1: 50 * GIB}
    assert kinds(gpu, 1)["hidden"] == 4 * GIB


def test_that_the_whole_is_withheld_is_no_trouble() -> None:
    world = World(uid=1000).divided(devices=1, used=None).mig(0, 1, total=50 * GIB)
    (finding,) = (each for each in diagnose(build_ledger(world.survey())) if each.code == "VR302")
    assert (finding.severity, "only its MIG instances" in finding.title) == ("info", True)


@pytest.mark.fault(9)
def test_instances_larger_than_their_gpu_were_changed_meanwhile() -> None:
    """Nothing is counted twice: the GPU is shown as a whole, and says why."""
    world = World().divided(devices=2, used=GIB).mig(0, 1, total=60 * GIB).mig(1, 2, total=60 * GIB)
    gpu = ledger(world)
    assert (gpu.instances, sums(gpu)) == ((), {None: 100 * GIB})
    assert "mig-changed" in [note.code for note in gpu.notes]


def test_a_dead_process_s_memory_stays_in_its_instance() -> None:
    used = 4 * GIB + CONTEXT + OVERHEAD
    world = World().divided(devices=2, used=used)
    world.mig(0, 1, total=40 * GIB, used=used).mig(1, 2, total=40 * GIB)
    world.charge(100, 4 * GIB + CONTEXT, instance=1, compute=0)
    world.process(101, parent=1, session=100).files(101, family=100)
    (orphan,) = (entry for entry in ledger(world).entries if entry.kind == "orphaned")
    assert (orphan.gpu_instance, orphan.holder.pid if orphan.holder else None) == (1, 101)


def test_an_exported_allocation_lies_in_the_instance_that_its_import_named() -> None:
    world = World().divided(devices=2, used=6 * GIB)
    world.mig(0, 1, total=40 * GIB, used=4 * GIB).mig(1, 2, total=40 * GIB, used=2 * GIB)
    world.process(300).export(300, 2 * GIB, instance=2)
    exported = [entry for entry in ledger(world).entries if entry.kind == "exported"]
    assert [(entry.gpu_instance, entry.nbytes, entry.confidence) for entry in exported] == [
        (2, 2 * GIB, "fact")
    ]


INSTANCES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 60 * GIB), st.integers(0, 60 * GIB)), max_size=5
)
CHARGES = st.lists(
    st.tuples(st.integers(2, 9), st.one_of(st.none(), st.integers(0, 120 * GIB)), st.integers(0, 5)),
    max_size=8,
)


@given(INSTANCES, CHARGES, st.one_of(st.none(), st.integers(0, 100 * GIB - RESERVED)), st.booleans())
def test_every_division_balances(
    instances: list[tuple[int, int, int]],
    charges: list[tuple[int, int | None, int]],
    used: int | None,
    alive: bool,
) -> None:
    world = World().divided(devices=len(instances), used=used)
    for device, (instance, total, inside) in enumerate(instances):
        world.mig(device, instance, compute=device, total=total, used=min(inside, total))
    for pid, nbytes, instance in charges:
        world.charge(pid, nbytes, instance=instance)
        if alive:
            world.process(pid).files(pid, family=pid)
    gpu = ledger(world)
    assert all(entry.nbytes is None or entry.nbytes >= 0 for entry in gpu.entries)
    if gpu.total_bytes is not None:
        assert known_bytes(gpu.entries) == gpu.total_bytes
    for each in gpu.instances:
        if each.total_bytes is not None:
            assert known_bytes(_inside(gpu, each.gpu_instance)) == each.total_bytes


def _inside(gpu: GpuLedger, instance: int) -> list[Entry]:
    return [entry for entry in gpu.entries if entry.gpu_instance == instance]
