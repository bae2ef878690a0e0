"""Every situation that was measured on hardware ends in the right line of the ledger."""

from __future__ import annotations

import pytest

from tests.ledger.world import CONTEXT, OVERHEAD, RESERVED, World
from vram.ledger.build import build_ledger
from vram.model.files import DeviceFile, FilesFacts
from vram.model.ledger import Entry, GpuLedger, known_bytes
from vram.model.process import ProcessRef
from vram.units import GIB, KIB, MIB


def only_gpu(world: World) -> GpuLedger:
    (gpu,) = build_ledger(world.survey()).gpus
    assert gpu.total_bytes == known_bytes(gpu.entries)
    return gpu


def entries(gpu: GpuLedger, kind: str) -> list[Entry]:
    return [entry for entry in gpu.entries if entry.kind == kind]


def test_an_idle_gpu_is_free_and_reserved_and_nothing_else():
    gpu = only_gpu(World().gpu(used=0))
    assert [(entry.kind, entry.nbytes) for entry in gpu.entries] == [
        ("reserved", RESERVED),
        ("free", 100 * GIB - RESERVED),
    ]


def test_a_process_is_named_with_its_charge_and_the_rest_of_its_context_is_overhead():
    gpu = only_gpu(World().gpu(used=CONTEXT + OVERHEAD).cuda(50, CONTEXT))
    (process,) = entries(gpu, "process")
    assert (process.holder.pid, process.nbytes, process.confidence) == (50, CONTEXT, "fact")
    assert [entry.nbytes for entry in entries(gpu, "overhead")] == [OVERHEAD]
    assert not entries(gpu, "unattributed")


def test_memory_of_a_dead_pid_belongs_to_the_child_of_its_session():
    world = World().gpu(used=4 * GIB + CONTEXT + OVERHEAD).charge(40, 4 * GIB + CONTEXT)
    gpu = only_gpu(world.process(41, session=40).files(41))
    (orphan,) = entries(gpu, "orphaned")
    assert (orphan.holder.pid, orphan.holder.alive, orphan.charged_pid) == (41, True, 40)
    assert orphan.confidence == "fact"


def test_a_reused_pid_is_not_taken_for_the_process_that_was_charged():
    """Somebody else has the dead parent's pid now; without device files it cannot be the holder."""
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(40).process(45, session=40).files(45)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert orphan.holder.pid == 45
    assert any("a different program now" in line for line in orphan.evidence)


def test_a_zombie_holds_nothing_its_child_does():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(40, state="Z")
    (orphan,) = entries(only_gpu(world.process(41, parent=40).files(41)), "orphaned")
    assert (orphan.holder.pid, orphan.charged_pid, orphan.charged_state) == (41, 40, "Z")


def test_two_dead_parents_are_told_apart_by_their_children():
    world = World().gpu(used=6 * GIB).charge(40, 4 * GIB).charge(60, 2 * GIB)
    world.process(41, session=40).files(41, family=1).process(61, session=60).files(61, family=2)
    held = {entry.charged_pid: entry.holder.pid for entry in entries(only_gpu(world), "orphaned")}
    assert held == {40: 41, 60: 61}


def test_all_children_that_share_the_files_are_named():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB)
    for child in (41, 42, 43):
        world.process(child).files(child, family=7)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert [orphan.holder.pid, *(co_holder.pid for co_holder in orphan.co_holders)] == [41, 42, 43]


def test_a_process_that_only_looked_for_gpus_is_not_taken_for_the_holder():
    """It has the GPU's files open too, but a context shows as many more of them."""
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB)
    world.process(70).files(70, context=False, family=7).process(80).files(80, family=8)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.pid, orphan.co_holders) == (80, ())


def test_a_process_that_only_looked_for_gpus_is_no_holder_even_if_it_is_the_only_one():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(70).files(70, context=False, family=7)
    gpu = only_gpu(world)
    (orphan,) = entries(gpu, "orphaned")
    assert (orphan.holder.pid, orphan.holder.alive, orphan.confidence) == (40, False, "unknown")
    assert [each.holder.pid for each in gpu.open_only] == [70]


@pytest.mark.parametrize("children", [(41, 43), (43,)], ids=str)
def test_a_session_does_not_tell_which_of_its_dead_is_the_parent(children: tuple[int, ...]):
    """A launcher and the program that it started both died; their forked children share its session.

    That each child holds the memory of one of them is a fact all the same."""
    world = World().gpu(used=6 * GIB).charge(40, 4 * GIB).charge(42, 2 * GIB)
    for pid in children:
        world.process(pid, session=40).files(pid, family=pid)
    orphans = entries(only_gpu(world), "orphaned")
    assert {entry.charged_pid: entry.confidence for entry in orphans} == {40: "fact", 42: "fact"}
    for orphan in orphans:
        assert (orphan.holder.pid, *(co_holder.pid for co_holder in orphan.co_holders)) == children
        assert orphan.sharing == "one"
        assert orphan.unheld == 2 - len(children)


def test_one_family_holds_the_memory_of_one_of_two_dead_pids():
    world = World().gpu(used=6 * GIB).charge(40, 4 * GIB).charge(42, 2 * GIB)
    world.process(43, session=40, parent=42).files(43, family=4)
    orphans = entries(only_gpu(world), "orphaned")
    assert [(each.confidence, each.sharing, each.unheld) for each in orphans] == [("fact", "one", 1)] * 2


def test_more_families_than_dead_pids_prove_nothing():
    """The children of one process share its open files: one of these has its files from somewhere else."""
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB)
    world.process(41).files(41, family=1).process(42).files(42, family=2)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.confidence, orphan.sharing) == ("likely", "one")


def test_processes_that_may_not_be_read_take_nothing_from_a_proven_holder():
    world = World(uid=1000).gpu(used=4 * GIB).charge(40, 4 * GIB).unreadable(300)
    (orphan,) = entries(only_gpu(world.process(41, uid=1000).files(41, family=1)), "orphaned")
    assert (orphan.holder.pid, orphan.confidence) == (41, "fact")
    assert any("open files of 300 processes are not readable" in line for line in orphan.evidence)


NOT_LEFT_BEHIND = {
    "it executed its program, so its files are its own": {"forked": False},
    "its parent lives, and is of its session": {"parent": 30, "session": 20},
}


@pytest.mark.parametrize("facts", NOT_LEFT_BEHIND.values(), ids=NOT_LEFT_BEHIND)
def test_a_program_that_is_just_making_its_context_is_not_proven_to_hold_a_dead_pids_memory(facts: dict):
    """It has a context's files and no charge yet, while the real holder may not be read."""
    world = World(uid=1000).gpu(used=4 * GIB).charge(40, 4 * GIB).unreadable(1).process(30, session=20)
    (orphan,) = entries(only_gpu(world.process(41, uid=1000, **facts).files(41, family=1)), "orphaned")
    assert orphan.confidence == "likely"


def test_it_does_not_stand_beside_the_proven_holder_either():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(30, session=20)
    world.process(41, forked=True).files(41, family=1).process(42, forked=False).files(42, family=2)
    gpu = only_gpu(world.process(43, parent=30, session=20, forked=True).files(43, family=3))
    (orphan,) = entries(gpu, "orphaned")
    assert (orphan.holder.pid, orphan.co_holders, orphan.confidence) == (41, (), "fact")
    assert [each.holder.pid for each in gpu.open_only] == [42, 43]


ADOPTED = {"init": {"parent": 1}, "of another session": {"parent": 30, "session": 25}}


@pytest.mark.parametrize("facts", ADOPTED.values(), ids=ADOPTED)
def test_a_child_that_lost_its_parent_is_proven_in_a_batch_script_too(facts: dict):
    """There nobody has a session or group of its own: only the kernel's adoption tells."""
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(30, session=30)
    (orphan,) = entries(only_gpu(world.process(41, forked=True, **facts).files(41, family=1)), "orphaned")
    assert (orphan.holder.pid, orphan.confidence) == (41, "fact")


def beside_an_unreadable_server(**server: int) -> Entry:
    world = World(uid=1000).gpu(used=8 * GIB).charge(40, 4 * GIB).charge(35, 4 * GIB)
    world.process(35, **{"uid": 1000, "session": 20, **server})
    world.process(41, uid=1000, session=20, forked=True).files(41, family=1)
    (orphan,) = entries(only_gpu(world.process(20, session=20)), "orphaned")
    return orphan


def test_a_living_charged_process_that_may_not_be_read_may_be_the_source():
    assert beside_an_unreadable_server(uid=0).confidence == "likely"


NOT_THE_SOURCE = {"another user's": {"uid": 1001}, "of another session": {"uid": 0, "session": 21}}


@pytest.mark.parametrize("server", NOT_THE_SOURCE.values(), ids=NOT_THE_SOURCE)
def test_unless_it_cannot_have_forked_the_holder(server: dict):
    orphan = beside_an_unreadable_server(**server)
    assert (orphan.holder.pid, orphan.confidence) == (41, "fact")


def test_nor_can_one_that_started_later():
    world = World(uid=1000).gpu(used=8 * GIB).charge(40, 4 * GIB).charge(50, 4 * GIB)
    world.process(50, uid=0).process(41, uid=1000, forked=True).files(41, family=1)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.pid, orphan.confidence) == (41, "fact")


def test_another_users_child_is_named_by_its_session_where_its_files_may_not_be_read():
    world = World(uid=1000).gpu(used=4 * GIB).charge(40, 4 * GIB).unreadable(1)
    (orphan,) = entries(only_gpu(world.process(41, uid=0, session=40, forked=True)), "orphaned")
    assert (orphan.holder.pid, orphan.holder.alive, orphan.confidence) == (41, True, "likely")


def test_two_dead_pids_of_two_users_are_told_apart_although_one_child_may_not_be_read():
    world = World(uid=1000).gpu(used=6 * GIB).charge(40, 4 * GIB).charge(60, 2 * GIB).unreadable(1)
    world.process(41, uid=1000, session=40, forked=True).files(41, family=1)
    world.process(61, uid=0, session=60, forked=True)
    held = {
        each.charged_pid: (each.holder.pid, each.confidence, each.sharing)
        for each in entries(only_gpu(world), "orphaned")
    }
    assert held == {40: (41, "fact", None), 60: (61, "likely", None)}


def test_children_that_surely_share_the_files_are_no_alternatives():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB)
    world.process(41, session=40).files(41, family=4).process(42, session=40).files(42, family=4)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.confidence, orphan.sharing) == ("fact", "all")


def test_memory_of_a_dead_pid_without_a_holder_in_sight_stays_charged_to_it():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.pid, orphan.holder.alive, orphan.confidence) == (40, False, "unknown")


def test_a_newcomer_with_the_dead_ones_pid_is_never_shown_as_its_holder():
    world = World().gpu(used=4 * GIB).charge(40, 4 * GIB).process(40)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.alive, orphan.holder.command, orphan.holder.started_at) == (False, None, None)


def test_a_child_that_inherited_a_living_parents_files_is_a_warning():
    world = World().gpu(used=CONTEXT + OVERHEAD).cuda(50, CONTEXT, family=5)
    gpu = only_gpu(world.process(51, parent=50).files(51, family=5))
    (each,) = gpu.open_only
    assert (each.holder.pid, each.inherited_from) == (51, 50)
    assert [co_holder.pid for co_holder in entries(gpu, "process")[0].co_holders] == [51]


def test_an_exported_allocation_without_a_charge_belongs_to_its_holder():
    world = World().gpu(used=4 * GIB).process(80).export(80, 4 * GIB)
    (exported,) = entries(only_gpu(world), "exported")
    assert (exported.holder.pid, exported.nbytes, exported.medium) == (80, 4 * GIB, "handle")


def test_an_exported_allocation_of_a_living_maker_is_not_counted_twice():
    world = World().gpu(used=4 * GIB + CONTEXT + OVERHEAD).cuda(50, 4 * GIB + CONTEXT).process(80)
    gpu = only_gpu(world.export(80, 4 * GIB))
    assert not entries(gpu, "exported")
    assert [(b.holder.pid, b.exported_bytes) for b in gpu.open_only] == [(80, 4 * GIB)]


def shared_while_one_lives(**holder: int) -> World:
    """Two allocations of a size: one maker lives and is charged, the other one is gone."""
    world = World().gpu(used=2 * GIB + CONTEXT + OVERHEAD).cuda(50, GIB + CONTEXT, session=50)
    world.process(51, **{"parent": 50, "session": 50, **holder}).export(51, GIB, description=1)
    return world.process(80, session=79).export(80, GIB, description=2)


@pytest.mark.parametrize("near", [{"session": 7}, {"parent": 1}, {}], ids=str)
def test_the_holder_next_to_a_living_maker_is_not_taken_for_the_one_of_a_dead_one(near: dict[str, int]):
    gpu = only_gpu(shared_while_one_lives(**near))
    (exported,) = entries(gpu, "exported")
    assert (exported.holder.pid, exported.nbytes, exported.confidence) == (80, GIB, "likely")
    assert any("pid 50 may have allocated" in line for line in exported.evidence)
    assert [(b.holder.pid, b.exported_bytes) for b in gpu.open_only] == [(51, GIB)]


def test_an_allocation_that_no_listed_process_is_charged_enough_for_is_surely_uncharged():
    world = World().gpu(used=5 * GIB + CONTEXT + OVERHEAD).cuda(50, GIB + CONTEXT).unreadable(3)
    world.process(51, parent=50).export(51, GIB, description=1).process(80).export(80, 4 * GIB, description=2)
    gpu = only_gpu(world)
    (exported,) = entries(gpu, "exported")
    assert (exported.holder.pid, exported.confidence) == (80, "fact")
    assert [b.holder.pid for b in gpu.open_only] == [51]


@pytest.mark.parametrize(("charged", "confidence"), [(GIB + CONTEXT, "likely"), (GIB - 1, "fact")])
def test_an_export_is_doubted_wherever_a_living_process_may_have_made_it(charged: int, confidence: str):
    """The uncharged bytes may be those of a descriptor on its way from one process to another."""
    world = World().gpu(used=GIB + charged + OVERHEAD).cuda(50, charged).process(80)
    (exported,) = entries(only_gpu(world.export(80, GIB)), "exported")
    assert exported.confidence == confidence


def test_a_dead_maker_that_is_still_charged_is_no_reason_to_doubt_a_handle():
    """Its forked child holds its context; whoever made the handle, nobody living uses it."""
    world = World().gpu(used=6 * GIB + OVERHEAD).charge(40, 5 * GIB).process(41, session=40).files(41)
    (exported,) = entries(only_gpu(world.process(80).export(80, GIB).unreadable(3)), "exported")
    assert (exported.holder.pid, exported.confidence) == (80, "fact")


def test_several_handles_of_one_process_are_one_line_with_their_sum():
    world = World().gpu(used=GIB + CONTEXT + OVERHEAD).cuda(50, GIB + CONTEXT).process(80)
    gpu = only_gpu(
        world.dmabuf(80, GIB // 2, inode=1).dmabuf(80, GIB // 2, inode=2).dmabuf(80, GIB // 2, inode=2)
    )
    assert [(b.holder.pid, b.exported_bytes) for b in gpu.open_only] == [(80, GIB)]


def test_a_maker_with_its_own_handle_open_is_not_warned_of():
    """Its handle ends with it."""
    world = World().gpu(used=GIB + CONTEXT + OVERHEAD).cuda(50, GIB + CONTEXT)
    assert only_gpu(world.export(50, GIB)).open_only == ()


def test_one_allocation_kept_by_two_processes_is_counted_once_and_names_both():
    world = World().gpu(used=4 * GIB).process(80).process(81)
    gpu = only_gpu(world.export(80, 4 * GIB, description=3).export(81, 4 * GIB, description=3))
    (exported,) = entries(gpu, "exported")
    assert [exported.holder.pid, *(co_holder.pid for co_holder in exported.co_holders)] == [80, 81]


def test_a_dmabuf_is_placed_on_the_gpu_that_has_room_for_it():
    world = World().gpu(0, used=0).gpu(1, used=2 * GIB).process(90).dmabuf(90, 2 * GIB)
    first, second = build_ledger(world.survey()).gpus
    assert not entries(first, "exported")
    assert [(e.medium, e.nbytes, e.confidence) for e in entries(second, "exported")] == [
        ("dmabuf", 2 * GIB, "likely")
    ]


@pytest.mark.fault(6)
def test_bytes_that_nobody_explains_are_a_line_of_their_own():
    (rest,) = entries(only_gpu(World().gpu(used=3 * GIB)), "unattributed")
    assert (rest.nbytes, rest.confidence) == (3 * GIB, "unknown")


def test_bytes_are_called_hidden_where_we_may_not_look():
    (hidden,) = entries(only_gpu(World(uid=1000).gpu(used=3 * GIB).unreadable(12)), "hidden")
    assert hidden.hidden_by == "permission"
    assert any("12 processes of alice" in line for line in hidden.evidence)


def test_bytes_are_called_hidden_inside_a_pid_namespace():
    (hidden,) = entries(only_gpu(World(initial_pid_namespace=False).gpu(used=3 * GIB)), "hidden")
    assert hidden.hidden_by == "namespace"


@pytest.mark.parametrize("status", ["failed", "denied", "timeout"])
def test_without_the_process_lists_nothing_is_concluded_from_who_is_not_on_them(status: str):
    world = World(uid=1000).gpu(used=5 * GIB).unlisted(status).unreadable(12)
    for pid in (50, 51, 52):
        world.process(pid).files(pid, family=pid)
    gpu = only_gpu(world.process(80).export(80, GIB))
    assert [entry.nbytes for entry in entries(gpu, "unattributed")] == [5 * GIB]
    assert not entries(gpu, "hidden") + entries(gpu, "overhead") + entries(gpu, "exported")
    words = " ".join(entries(gpu, "unattributed")[0].evidence)
    assert "pids 50, 51, 52 have the GPU open" in words
    assert "context" not in words
    assert {each.holder.pid for each in gpu.open_only} == {50, 51, 52, 80}


def test_without_the_process_lists_a_gpu_that_nobody_readable_has_open_is_kept_out_of_sight():
    world = World(uid=1000).gpu(used=5 * GIB).unlisted("failed").unreadable(12)
    (hidden,) = entries(only_gpu(world), "hidden")
    assert (hidden.nbytes, hidden.hidden_by) == (5 * GIB, "permission")


def test_lists_that_fail_on_one_gpu_take_nothing_from_another():
    world = (
        World()
        .gpu(0, used=5 * GIB)
        .gpu(1, used=CONTEXT + OVERHEAD)
        .unlisted("failed")
        .cuda(50, CONTEXT, gpu=1)
    )
    _, other = build_ledger(world.survey()).gpus
    assert [entry.kind for entry in other.entries] == ["process", "overhead", "reserved", "free"]


def test_processes_that_only_initialised_cuda_are_named_together():
    world = World().gpu(used=3328 * KIB)
    for pid in (70, 71):
        world.process(pid).files(pid, context=False)
    (overhead,) = entries(only_gpu(world), "overhead")
    assert "CUDA is initialised, without a context, in pids 70, 71" in overhead.evidence[0]


def test_figures_that_overlap_are_cut_to_what_is_in_use_and_say_so():
    world = World().gpu(used=5 * GIB).cuda(50, 4 * GIB).cuda(51, 4 * GIB)
    gpu = only_gpu(world)
    assert known_bytes(entries(gpu, "process")) == 5 * GIB
    assert any(entry.claimed == 4 * GIB for entry in entries(gpu, "process"))
    (note,) = gpu.notes
    assert note.code == "overlap"
    assert "3.0 GiB" in note.text


def test_the_only_process_without_a_figure_gets_what_is_left():
    world = World().gpu(used=3 * GIB).process(50).files(50).charge(50, None)
    (process,) = entries(only_gpu(world), "process")
    assert (process.nbytes, process.confidence) == (3 * GIB - OVERHEAD, "likely")


def test_without_figures_the_holder_of_a_dead_pid_is_still_named():
    world = World().gpu(used=3 * GIB).charge(40, None).process(41, session=40).files(41)
    (orphan,) = entries(only_gpu(world), "orphaned")
    assert (orphan.holder.pid, orphan.charged_pid, orphan.confidence) == (41, 40, "likely")
    assert orphan.nbytes == 3 * GIB - OVERHEAD
    assert not entries(only_gpu(world), "process")


def test_holders_of_dead_pids_without_figures_are_named_among_those_who_share():
    world = World().gpu(used=3 * GIB).charge(40, None).process(41, session=40).files(41, family=4)
    gpu = only_gpu(world.process(50).files(50, family=5).charge(50, None))
    (orphan,) = entries(gpu, "orphaned")
    assert (orphan.holder.pid, orphan.nbytes) == (41, None)
    assert [co_holder.pid for co_holder in entries(gpu, "process")[0].co_holders] == [41, 50]


def test_several_processes_without_figures_share_a_line_that_names_them():
    world = World().gpu(used=3 * GIB).process(50).files(50).charge(50, None)
    gpu = only_gpu(world.process(51).files(51).charge(51, (1 << 64) - 1))
    together, *each = entries(gpu, "process")
    assert [(e.holder.pid, e.nbytes, e.confidence) for e in each] == [
        (50, None, "unknown"),
        (51, None, "unknown"),
    ]
    assert together.sharing == "together"
    assert (together.holder, [co_holder.pid for co_holder in together.co_holders]) == (None, [50, 51])
    assert "50, 51" in together.evidence[0]
    assert not entries(gpu, "unattributed")


def test_a_lost_gpu_has_no_total_and_does_not_hide_the_others():
    lost, other = build_ledger(World().lost(0).gpu(1, used=0).survey()).gpus
    assert (lost.total_bytes, lost.status, lost.entries) == (None, "lost", ())
    assert other.status == "ok"


def test_who_has_the_files_of_a_lost_gpu_open_is_known_all_the_same():
    """Even where the driver does not give the GPU's number: what belongs to no other GPU belongs to it."""
    world = World().lost(0).gpu(1, used=2 * GIB).cuda(51, 2 * GIB, gpu=1)
    world = world.process(50).files(50, minors=(0,)).process(52).files(52, minors=(0, 1), context=False)
    lost, _ = build_ledger(world.process(53, state="Z").files(53).survey()).gpus
    assert [each.holder.pid for each in lost.open_only] == [50, 52]


def test_a_process_that_only_initialised_cuda_explains_what_that_costs():
    gpu = only_gpu(World().gpu(used=3328 * KIB).process(70).files(70, context=False))
    assert [entry.nbytes for entry in entries(gpu, "overhead")] == [3328 * KIB]
    assert not entries(gpu, "unattributed")


def test_managed_memory_belongs_to_the_process_that_has_it_mapped():
    world = World().gpu(used=CONTEXT + OVERHEAD + GIB).process(50).charge(50, CONTEXT)
    gpu = only_gpu(world.files(50, managed=GIB))
    (managed,) = [entry for entry in entries(gpu, "process") if entry.medium == "managed"]
    assert (managed.holder.pid, managed.nbytes, managed.confidence) == (50, GIB, "likely")
    assert not entries(gpu, "unattributed")


def test_managed_memory_that_lies_with_the_host_is_not_counted():
    world = World().gpu(used=CONTEXT + OVERHEAD).process(50).charge(50, CONTEXT).files(50, managed=GIB)
    assert [entry.nbytes for entry in entries(only_gpu(world), "process")] == [CONTEXT]


def test_managed_memory_does_not_make_a_living_makers_export_count_twice():
    world = World().gpu(used=2 * GIB + CONTEXT + OVERHEAD).process(50).charge(50, GIB + CONTEXT)
    gpu = only_gpu(world.files(50, managed=GIB).process(80).export(80, GIB))
    assert not entries(gpu, "exported")
    assert [entry.nbytes for entry in entries(gpu, "process") if entry.medium == "managed"] == [GIB]


def test_overhead_is_bounded_so_that_a_real_leak_is_not_called_overhead():
    gpu = only_gpu(World().gpu(used=CONTEXT + 300 * MIB).cuda(50, CONTEXT))
    assert entries(gpu, "overhead")[0].nbytes == OVERHEAD
    assert entries(gpu, "unattributed")[0].nbytes == 300 * MIB - OVERHEAD


def test_what_cuda_needs_once_is_not_counted_for_every_context():
    world = World().gpu(used=4 * CONTEXT + (3328 + 4 * 5696) * KIB)
    for pid in (50, 51, 52, 53):
        world.cuda(pid, CONTEXT)
    gpu = only_gpu(world)
    assert entries(gpu, "overhead")[0].nbytes == (3328 + 4 * 5696) * KIB


def test_a_charged_process_that_was_read_in_part_may_be_the_source_of_a_family() -> None:
    """So nobody is called the child of a dead process for a fact while it lives."""
    world = World().gpu(used=4 * GIB).charge(40, 2 * GIB)
    world.process(30, session=9).charge(30, GIB).files(30, family=2)
    world.process(41, session=40, forked=True).files(41, family=1)
    known = only_gpu(world)
    assert [entry.confidence for entry in entries(known, "orphaned")] == ["fact"]
    world.read_in_part(30)
    doubted = only_gpu(world)
    assert [entry.confidence for entry in entries(doubted, "orphaned")] == ["likely"]


def test_who_has_any_file_of_the_driver_is_told_where_no_holder_is_known():
    """One descriptor keeps all memory: here one of nvidiactl, which who only watches has too."""
    world = World().gpu(used=4 * GIB).charge(40, GIB).cuda(42, GIB)
    for pid in (41, 43):
        facts = FilesFacts((DeviceFile(3, "control", "/dev/nvidiactl"),), 0, 0)
        world.process(pid)._see("proc.files", process=ProcessRef(pid), facts=facts)
    (entry,) = entries(only_gpu(world), "orphaned")
    assert (entry.charged_pid, entry.holder.pid) == (40, 40)
    assert entry.evidence[-1].startswith("driver files are open, and nothing is charged, in pid 41, 43:")
