"""Processes that end while the host is read: no leftovers, unless somebody keeps their files."""

from __future__ import annotations

import pytest

from tests.ledger.test_build import entries, only_gpu
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.engine import diagnose
from vram.diagnosis.verdict import judge, overall
from vram.ledger.build import build_ledger
from vram.model.ledger import Entry
from vram.units import GIB, KIB


def busy(**listed: object) -> World:
    """A GPU on which pid 40 was listed, alive, with a gibibyte."""
    world = World().gpu(used=GIB + OVERHEAD)
    return world.charge(40, GIB, **({"started_at": 400} | listed))  # type: ignore[arg-type]


def set_apart(world: World) -> Entry:
    """The entry of the process that ended, in a ledger that balances and blames nobody."""
    gpu = only_gpu(world)
    (entry,) = entries(gpu, "hidden")
    assert not entries(gpu, "orphaned") + entries(gpu, "process") + entries(gpu, "unattributed")
    assert [note.code for note in gpu.notes] == ["ended-meanwhile"]
    ledger = build_ledger(world.survey())
    assert overall(judge(ledger, leftovers=True)) == "clean"
    assert not {"VR101", "VR105", "VR203", "VR301", "VR302"} & {each.code for each in diagnose(ledger)}
    return entry


def test_a_process_that_was_alive_when_it_was_listed_and_is_gone_left_nothing_over():
    entry = set_apart(busy())
    assert (entry.nbytes, entry.hidden_by, entry.charged_pid) == (GIB, "end", 40)
    assert (entry.holder.pid, entry.holder.alive) == (40, False)


def test_what_it_had_is_still_held_when_asked_for_everything():
    assert overall(judge(build_ledger(busy().survey()))) == "held"


@pytest.mark.parametrize(
    "now",
    [{"state": "Z"}, {"exiting": True}, {"pid": 40, "reused": True}],
    ids=["zombie", "exiting", "another with its pid"],
)
def test_neither_did_one_that_ends_just_now(now: dict[str, object]):
    world = busy(started_at=399) if now.pop("reused", False) else busy()
    set_apart(world.process(**({"pid": 40} | now)))  # type: ignore[arg-type]


def test_nor_one_that_ended_between_the_list_and_the_first_look_at_it():
    set_apart(busy(started_at=None, ended=True))


def test_who_came_after_the_list_was_read_is_not_taken_for_its_holder():
    set_apart(busy().files(40, family=4).process(41).files(41, family=5))


def test_neither_is_a_newcomer_whose_files_the_kernel_does_not_tell_apart():
    set_apart(busy().process(41, session=7).files(41))


@pytest.mark.parametrize("family", [None, 4], ids=["child", "same files"])
def test_memory_that_somebody_living_keeps_is_orphaned(family: int | None):
    world = busy().files(40, family=family).process(41, session=0 if family else 40).files(41, family=family)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.pid, orphan.charged_pid) == (41, 40)


def test_a_pid_that_was_dead_when_it_was_listed_is_no_passing_process():
    (orphan,) = entries(only_gpu(busy(started_at=None)), "orphaned")
    assert orphan.charged_pid == 40


def test_who_was_exiting_when_it_was_listed_may_be_stuck_there():
    gpu = only_gpu(busy(exiting=True).process(40, exiting=True).files(40))
    assert [entry.holder.exiting for entry in entries(gpu, "process")] == [True]


def test_the_living_beside_it_are_named_as_ever():
    world = World().gpu(used=GIB + CONTEXT + OVERHEAD + 5696 * KIB).cuda(50, CONTEXT)
    gpu = only_gpu(world.charge(40, GIB, started_at=400))
    assert [entry.holder.pid for entry in entries(gpu, "process")] == [50]
    assert [entry.nbytes for entry in entries(gpu, "overhead")] == [OVERHEAD + 5696 * KIB]


def test_what_cuda_took_on_another_gpu_is_no_leftover_there():
    """CUDA opens every GPU; that a process had done so cannot be seen any more."""
    _, other = build_ledger(busy().gpu(1, used=3328 * KIB).survey()).gpus
    assert [entry.nbytes for entry in entries(other, "overhead")] == [3328 * KIB]
    assert not entries(other, "unattributed")


def test_more_than_cuda_takes_on_another_gpu_is_not_explained_by_it():
    _, other = build_ledger(busy().gpu(1, used=3329 * KIB).survey()).gpus
    assert [entry.nbytes for entry in entries(other, "unattributed")] == [3329 * KIB]
