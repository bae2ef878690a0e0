"""The driver's reserve for managed memory: when it is a fact, when likely, and what is never called so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.engine import diagnose
from vram.diagnosis.verdict import judge
from vram.ledger.build import build_ledger
from vram.ledger.holds import find_holds
from vram.model.ledger import Entry, Ledger
from vram.report.process_rows import rows
from vram.units import GIB, KIB, MIB

MEASURED = (124 * MIB, 60 * MIB, 116 * MIB)
"""What was left on an H200 beside a living process, after others had touched 4, 64 and 200 MiB."""

USED = CONTEXT + OVERHEAD
UNEXPLAINED = ("hidden", "unattributed")


def beside_cuda(nbytes: int, *, uid: int = 0, initial_pid_namespace: bool = True) -> World:
    """A GPU that one process has a context on, and *nbytes* that no process is charged with."""
    world = World(uid=uid, initial_pid_namespace=initial_pid_namespace)
    return world.gpu(used=USED + nbytes).cuda(50, CONTEXT)


def read(world: World) -> tuple[Ledger, list[Entry], int]:
    """The ledger, its entries of the reserve, and how much of the GPU is unexplained."""
    ledger = build_ledger(world.survey())
    entries = ledger.gpus[0].entries
    assert sum(entry.nbytes or 0 for entry in entries) == ledger.gpus[0].total_bytes
    unexplained = sum(entry.nbytes or 0 for entry in entries if entry.kind in UNEXPLAINED)
    return ledger, [entry for entry in entries if entry.kind == "preallocated"], unexplained


def is_clean(ledger: Ledger) -> str:
    (verdict,) = judge(ledger, leftovers=True)
    return verdict.verdict


@pytest.mark.parametrize("nbytes", MEASURED)
def test_where_nothing_else_can_hold_it_the_reserve_is_a_fact_in_every_view(nbytes: int) -> None:
    ledger, (preallocated,), unexplained = read(beside_cuda(nbytes).elsewhere())
    assert (preallocated.nbytes, preallocated.confidence, unexplained) == (nbytes, "fact", 0)
    assert is_clean(ledger) == "clean"
    assert ledger.gpus[0].bytes_by_kind()["preallocated"] == nbytes
    assert [hold.pid for hold in find_holds(ledger)] == [50]
    assert [row.pid for row in rows(ledger)] == [50]
    (finding,) = [each for each in diagnose(ledger) if each.code == "VR408"]
    assert (finding.nbytes, finding.severity, finding.remedies) == (nbytes, "info", ())
    assert not {"VR106", "VR302"} & {each.code for each in diagnose(ledger)}


@pytest.mark.parametrize(
    "world",
    [
        beside_cuda(124 * MIB, uid=1000).elsewhere(),
        beside_cuda(124 * MIB, initial_pid_namespace=False).elsewhere(),
        beside_cuda(124 * MIB).unreadable(1).elsewhere(),
        beside_cuda(124 * MIB).out_of_time().elsewhere(),
        beside_cuda(124 * MIB).read_in_part(60).elsewhere(),
        beside_cuda(124 * MIB).unsized_dmabuf(60).elsewhere(),
        beside_cuda(CONTEXT + 5696 * KIB + 124 * MIB).charge(61, CONTEXT, ended=True).elsewhere(),
        beside_cuda(124 * MIB),
    ],
    ids=["a user", "a container", "unreadable", "late", "cut", "dma-buf", "ended", "not looked"],
)
def test_where_a_holder_may_be_hidden_it_is_likely_at_most(world: World) -> None:
    ledger, found, _ = read(world)
    assert [(entry.nbytes, entry.confidence) for entry in found] == [(124 * MIB, "likely")]
    assert is_clean(ledger) == "unknown"


@pytest.mark.parametrize(
    "code",
    ["in-flight", "io-uring", "own-files", "other-driver", "console", "exiting", "untried", "cut-off"],
)
def test_every_place_where_memory_can_be_held_unseen_makes_it_likely(code: str) -> None:
    ledger, (preallocated,), _ = read(beside_cuda(124 * MIB).elsewhere(code))
    assert preallocated.confidence == "likely"
    assert is_clean(ledger) == "unknown"


def test_a_user_beside_others_is_told_who_sees_more_and_that_it_is_not_certain() -> None:
    ledger, (preallocated,), _ = read(beside_cuda(124 * MIB, uid=1000).unreadable(3))
    (finding,) = [each for each in diagnose(ledger) if each.code == "VR408"]
    assert "likely" in finding.title
    assert [each.step for each in finding.remedies] == ["look"]
    assert any("3 processes are not readable" in line for line in preallocated.evidence)


@pytest.mark.parametrize("nbytes", [128 * MIB, 200 * MIB, 300 * MIB, 2 * GIB])
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_hidden_holder_of_more_is_never_called_the_reserve_nor_a_part_of_it(nbytes: int, uid: int) -> None:
    _, found, unexplained = read(beside_cuda(nbytes, uid=uid).elsewhere())
    assert (found, unexplained) == ([], nbytes)


@given(st.integers(min_value=0, max_value=GIB // MIB))
def test_whatever_is_in_use_the_reserve_is_bounded(mib: int) -> None:
    _, found, unexplained = read(beside_cuda(mib * MIB).elsewhere())
    assert sum(entry.nbytes or 0 for entry in found) <= 126 * MIB
    assert not (found and unexplained)


@pytest.mark.parametrize("nbytes", [125 * MIB, 64 * MIB + 4 * KIB, 63 * MIB])
def test_what_is_no_whole_number_of_pieces_is_something_else(nbytes: int) -> None:
    _, found, unexplained = read(beside_cuda(nbytes).elsewhere())
    assert (found, unexplained) == ([], nbytes)


def test_with_the_last_cuda_process_the_reserve_is_gone() -> None:
    """So what is in use then is held by something."""
    _, found, unexplained = read(World().gpu(used=124 * MIB).elsewhere())
    assert (found, unexplained) == ([], 124 * MIB)
    ended = World().gpu(used=USED + 124 * MIB).process(50, state="Z").charge(50, CONTEXT).elsewhere()
    assert read(ended)[1] == []


def test_a_desktop_uses_no_managed_memory() -> None:
    world = World().gpu(used=USED + 100 * MIB).process(50).charge(50, CONTEXT, lists=("graphics",)).files(50)
    assert read(world.elsewhere())[1] == []


def test_a_process_that_is_seen_with_a_dead_ones_context_comes_first() -> None:
    """It has a context's files, of no living process: the memory may be all that is left of that context."""
    _, found, unexplained = read(beside_cuda(100 * MIB).process(70).files(70, family=9).elsewhere())
    assert (found, unexplained) == ([], 100 * MIB)
    executed = beside_cuda(100 * MIB).process(70).files(70, family=9, mapped=False).elsewhere()
    assert read(executed)[1] == []


def test_the_children_of_a_living_process_hold_no_more_than_it_does() -> None:
    _, (preallocated,), _ = read(
        beside_cuda(100 * MIB).process(70, parent=50).files(70, family=50).elsewhere()
    )
    assert preallocated.confidence == "fact"


def test_an_exported_handle_comes_first_and_the_rest_is_the_reserve() -> None:
    world = beside_cuda(124 * MIB + GIB).process(80).export(80, GIB).elsewhere()
    ledger, (preallocated,), _ = read(world)
    assert preallocated.nbytes == 124 * MIB
    assert [each.nbytes for each in ledger.gpus[0].of_kind("exported")] == [GIB]
    assert is_clean(ledger) == "held"


def test_what_managed_memory_in_use_left_over_is_the_reserve() -> None:
    """4 MiB touched take 128: the process has 4, and the driver 124."""
    world = World().gpu(used=USED + 128 * MIB).process(50).charge(50, CONTEXT).files(50, managed=4 * MIB)
    ledger, (preallocated,), _ = read(world.elsewhere())
    managed = [entry.nbytes for entry in ledger.gpus[0].of_kind("process") if entry.medium == "managed"]
    assert (managed, preallocated.nbytes) == ([4 * MIB], 124 * MIB)


def test_a_list_that_was_not_read_proves_nothing() -> None:
    assert read(beside_cuda(124 * MIB).unlisted("failed").elsewhere())[1] == []
    unsized = World().gpu(used=USED + 124 * MIB).cuda(50, CONTEXT).process(51).charge(51, None).elsewhere()
    assert read(unsized)[1] == []


def test_an_instance_of_mig_has_none() -> None:
    """It was not measured there."""
    world = World().divided(devices=1, used=USED + 124 * MIB).mig(0, 1, total=10 * GIB, used=USED + 124 * MIB)
    world = world.process(50).charge(50, CONTEXT, instance=1).files(50).elsewhere()
    assert not [
        entry for entry in build_ledger(world.survey()).gpus[0].entries if entry.kind == "preallocated"
    ]
