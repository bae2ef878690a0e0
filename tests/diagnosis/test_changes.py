"""Two readings compared: each change once, by identity, and nothing from a source that did not answer."""

from __future__ import annotations

import gc
import random
import re
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.changes import Comparison
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.change import GROUPS, MEANINGS, Change, Event, WatchState
from vram.model.ledger import Ledger
from vram.model.observation import Observation, ProbeRun, Survey
from vram.model.process import ParkedProcess, ProcessFacts, ProcessRef
from vram.units import GIB, MIB

HELD = 4 * GIB + CONTEXT


class Watched:
    """A comparison that is fed with worlds."""

    def __init__(self, first: World, *probes: ProbeRun, min_bytes: int = 64 * MIB) -> None:
        self.comparison = Comparison(min_bytes)
        self.state: WatchState = self.comparison.begin(*judged(ledger(first, *probes)))

    def sees(self, world: World, *probes: ProbeRun) -> list[Change]:
        return list(self.comparison.compare(*judged(ledger(world, *probes))))

    def events(self, world: World, *probes: ProbeRun) -> list[str]:
        return [change.event for change in self.sees(world, *probes)]


def judged(taken: Ledger) -> tuple[Ledger, tuple]:  # type: ignore[type-arg]
    return taken, diagnose(taken)


def ledger(world: World, *probes: ProbeRun) -> Ledger:
    return build_ledger(replace(world.survey(), probes=probes or (ProbeRun("nvml", "ok", 0.01),)))


def idle(gpus: int = 1) -> World:
    world = World()
    for index in range(gpus):
        world.gpu(index)
    return world


def busy(nbytes: int = HELD, pid: int = 100) -> World:
    return World().gpu(0, used=nbytes + OVERHEAD).cuda(pid, nbytes)


def haunted() -> World:
    """Pid 200 is dead, and its forked child 201 keeps its files."""
    return World().gpu(0, used=HELD + OVERHEAD).charge(200, HELD).process(201).files(201, family=200)


def parent_and_child() -> World:
    world = World().gpu(0, used=HELD + OVERHEAD).cuda(200, HELD, family=200)
    return world.process(201, parent=200).files(201, family=200)


def test_every_event_belongs_to_one_group_and_has_a_meaning() -> None:
    named = [event for group in GROUPS.values() for event in group]
    assert sorted(named) == sorted(Event.__args__) == sorted(MEANINGS)  # type: ignore[attr-defined]


def test_what_is_there_at_first_is_the_state_and_no_change() -> None:
    watched = Watched(haunted())
    assert [(gpu.index, gpu.processes) for gpu in watched.state.gpus] == [(0, 0)]
    (ghost,) = [each for each in watched.state.present if each.event == "ghost"]
    assert (ghost.pid, ghost.dead_pid, ghost.held_bytes, ghost.code) == (201, 200, HELD, "VR101")
    assert watched.sees(haunted()) == []


def test_a_process_starts_and_ends_and_its_memory_comes_back() -> None:
    watched = Watched(idle())
    (started,) = watched.sees(busy())
    assert (started.event, started.gpus, started.pid, started.nbytes) == ("started", (0,), 100, HELD)
    assert started.started_at == 1000
    ended, freed = watched.sees(idle())
    assert (ended.event, ended.pid, ended.nbytes, ended.held_bytes) == ("ended", 100, -HELD, 0)
    assert (freed.event, freed.nbytes) == ("freed", HELD + OVERHEAD)
    assert watched.sees(idle()) == []


def test_a_process_that_releases_its_memory_and_lives_on_has_not_ended() -> None:
    watched = Watched(busy())
    assert watched.events(World().gpu(0).process(100).files(100, context=False))[0] == "released"


def test_slow_growth_adds_up_to_what_was_last_reported() -> None:
    watched = Watched(busy(HELD))
    seen = [watched.sees(busy(HELD + step * 10 * MIB)) for step in range(1, 15)]
    grown = [change for changes in seen for change in changes]
    assert [(each.event, each.nbytes) for each in grown] == [("grew", 70 * MIB), ("grew", 70 * MIB)]
    assert grown[-1].held_bytes == HELD + 140 * MIB


def test_a_process_shrinks() -> None:
    watched = Watched(busy(HELD))
    (change,) = watched.sees(busy(HELD - GIB))
    assert (change.event, change.nbytes) == ("shrank", -GIB)


def test_a_reused_pid_is_an_end_and_a_start() -> None:
    watched = Watched(busy())
    reused = replace(busy().survey(), probes=(ProbeRun("nvml", "ok", 0.01),))
    later = tuple(_later(each) for each in reused.observations)
    taken = build_ledger(replace(reused, observations=later))
    changes = watched.comparison.compare(*judged(taken))
    assert [(each.event, each.pid, each.started_at) for each in changes] == [
        ("ended", 100, 1000),
        ("started", 100, 5555),
    ]


def _later(observation: Observation) -> Observation:
    if not isinstance(observation.facts, ProcessFacts) or observation.process is None:
        return observation
    return replace(observation, process=ProcessRef(observation.process.pid, started_at=5555))


def test_a_ghost_is_reported_once_and_only_after_a_second_reading() -> None:
    watched = Watched(parent_and_child())
    assert watched.events(haunted()) == ["ended"]
    assert watched.comparison.needs_confirmation
    (ghost,) = watched.sees(haunted())
    assert (ghost.event, ghost.pid, ghost.dead_pid, ghost.nbytes) == ("ghost", 201, 200, HELD)
    assert not watched.comparison.needs_confirmation
    assert watched.sees(haunted()) == []
    assert watched.events(idle()) == ["ghost-gone", "freed"]


def test_a_ghost_of_one_reading_is_none() -> None:
    watched = Watched(parent_and_child())
    assert watched.events(haunted()) == ["ended"]
    assert watched.events(idle()) == ["freed"]
    assert watched.events(idle()) == []


def test_a_context_that_is_being_made_is_no_ghost() -> None:
    """In use already, open files already, and not yet in the driver's list."""
    watched = Watched(idle())
    making = World().gpu(0, used=CONTEXT + OVERHEAD).process(100).files(100)
    assert watched.events(making) == []
    assert watched.events(busy(CONTEXT)) == ["started"]
    assert watched.events(busy(CONTEXT)) == []


def test_unattributed_memory_comes_and_goes() -> None:
    watched = Watched(idle())
    strange = World().gpu(0, used=3 * GIB)
    assert watched.events(strange) == []
    (change,) = watched.sees(strange)
    assert (change.event, change.kind, change.code) == ("unattributed", "unattributed", "VR106")
    assert watched.events(World().gpu(0, used=4 * GIB)) == ["grew"]
    assert watched.events(idle()) == ["unattributed-gone", "freed"]


def test_a_lost_gpu_ends_nothing_and_the_other_goes_on() -> None:
    both = World().gpu(0, used=HELD + OVERHEAD).cuda(100, HELD).gpu(1)
    watched = Watched(both)
    lost = World().lost(0).gpu(1, used=HELD + OVERHEAD).cuda(300, HELD, gpu=1)
    changes = watched.sees(lost, ProbeRun("nvml", "lost", 0.01))
    assert [(each.event, each.gpus, each.pid) for each in changes] == [
        ("gpu-lost", (0,), None),
        ("started", (1,), 300),
    ]
    assert watched.sees(lost, ProbeRun("nvml", "lost", 0.01)) == []
    back = World().gpu(0, used=HELD + OVERHEAD).cuda(100, HELD)
    back.gpu(1, used=HELD + OVERHEAD).cuda(300, HELD, gpu=1)
    assert watched.events(back) == ["gpu-back"]


@pytest.mark.parametrize("status", ["timeout", "failed", "denied"])
def test_process_lists_that_are_not_read_end_nothing(status: str) -> None:
    watched = Watched(busy())
    unlisted = World().gpu(0, used=HELD + OVERHEAD).process(100).files(100).unlisted(status)
    (change,) = watched.sees(unlisted)
    assert (change.event, change.status) == ("gpu-unreadable", status)
    assert watched.sees(unlisted) == []
    assert watched.events(busy()) == ["gpu-back"]


def test_what_ended_while_the_gpu_did_not_answer_is_reported_when_it_does() -> None:
    watched = Watched(busy())
    assert watched.events(World().lost(0), ProbeRun("nvml", "lost", 0.01)) == ["gpu-lost"]
    assert watched.events(idle()) == ["gpu-back", "ended", "freed"]


def test_a_driver_that_is_gone_is_a_state() -> None:
    watched = Watched(busy())
    gone = ProbeRun("nvml", "unsupported", 0.01, "not loaded", "nvml-9")
    (change,) = watched.sees(World(), gone)
    assert (change.event, change.code, change.message) == ("driver-gone", "nvml-9", "not loaded")
    assert watched.sees(World(), gone) == []
    assert watched.events(busy()) == ["driver-back"]


def test_without_a_driver_at_first_it_waits_for_one() -> None:
    watched = Watched(World(), ProbeRun("nvml", "unsupported", 0.01, "not loaded", "nvml-9"))
    assert [each.event for each in watched.state.present] == ["driver-gone"]
    assert watched.events(busy()) == ["driver-back", "gpu-added", "started"]


def test_a_scan_that_was_cut_off_ends_no_ghost() -> None:
    watched = Watched(haunted())
    cut = (ProbeRun("nvml", "ok", 0.01), ProbeRun("files", "timeout", 5.0, "cut off", "cut-off"))
    holderless = World().gpu(0, used=HELD + OVERHEAD).charge(200, HELD)
    (change,) = watched.sees(holderless, *cut)
    assert (change.event, change.probe, change.code) == ("probe-failed", "files", "cut-off")
    assert watched.sees(World().gpu(0), *cut) == []
    assert watched.events(haunted()) == ["probe-recovered"]


def test_a_source_that_always_fails_does_not_blind_the_watch() -> None:
    failing = (ProbeRun("nvml", "ok", 0.01), ProbeRun("exports", "failed", 0.1, "no", "error"))
    watched = Watched(parent_and_child(), *failing)
    assert watched.events(haunted(), *failing) == ["ended"]
    assert watched.events(haunted(), *failing) == ["ghost"]


def test_gpus_come_and_go_and_may_be_numbered_anew() -> None:
    two = World().gpu(0).gpu(1, used=HELD + OVERHEAD).cuda(100, HELD, gpu=1)
    watched = Watched(two)
    fewer = ledger(two)
    moved = replace(fewer, gpus=(replace(fewer.gpus[1], index=0),))
    (change,) = watched.comparison.compare(*judged(moved))
    assert (change.event, change.gpus) == ("gpu-removed", (0,))
    assert watched.events(two) == ["gpu-added"]


def test_a_hung_driver_removes_no_gpu() -> None:
    watched = Watched(idle(2))
    assert watched.events(World().gpu(0), ProbeRun("nvml", "timeout", 5.0)) == []


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_process_stops_and_continues(state: str) -> None:
    def world(state: str) -> World:
        return World().gpu(0, used=HELD + OVERHEAD).cuda(100, HELD, state=state)  # type: ignore[arg-type]

    watched = Watched(world("S"))
    first, second = watched.events(world(state)), watched.events(world(state))
    # Under strace a process is in state t for moments, again and again.
    assert (first, second) == ((["stopped"], []) if state == "T" else ([], ["stopped"]))
    assert watched.events(world("S")) == ["continued"]
    assert watched.events(world("S")) == []


def test_parking_is_no_end_and_no_start() -> None:
    parked = ParkedProcess(
        pid=100, user="root", command="python", nbytes=HELD, gpus=(0,), since="s", started_at=1000
    )
    watched = Watched(busy())
    # The journal is written before the driver is asked.
    moving = replace(ledger(busy()), parked=(parked,))
    away = replace(ledger(idle()), parked=(parked,))
    assert [each.event for each in watched.comparison.compare(*judged(moving))] == ["parked"]
    assert [each.event for each in watched.comparison.compare(*judged(away))] == ["freed"]
    assert watched.comparison.compare(*judged(away)) == ()
    assert watched.comparison.compare(*judged(moving)) == ()
    (change,) = watched.sees(busy())
    assert (change.event, change.nbytes, change.pid) == ("unparked", HELD, 100)


def test_a_parked_process_that_ends_has_ended() -> None:
    parked = ParkedProcess(
        pid=100, user="root", command="python", nbytes=HELD, gpus=(0,), since="s", started_at=1000
    )
    watched = Watched(busy())
    watched.comparison.compare(*judged(replace(ledger(idle()), parked=(parked,))))
    assert [watched.events(idle()) for _ in range(3)] == [[], ["ended"], []]


def test_a_process_that_is_brought_back_while_the_gpu_is_read_has_not_ended() -> None:
    parked = ParkedProcess(
        pid=100, user="root", command="python", nbytes=HELD, gpus=(0,), since="s", started_at=1000
    )
    watched = Watched(busy())
    watched.comparison.compare(*judged(replace(ledger(idle()), parked=(parked,))))
    assert watched.events(idle()) == []
    assert [watched.events(busy()) for _ in range(3)] == [["unparked"], [], []]


def test_a_finding_is_reported_when_it_stays_and_when_it_has_gone_for_good() -> None:
    def contexts(count: int) -> World:
        world = World().gpu(0, used=count * (CONTEXT + OVERHEAD))
        for pid in range(100, 100 + count):
            world.cuda(pid, CONTEXT)
        return world

    watched = Watched(contexts(1))
    seen = [watched.sees(contexts(4)) for _ in range(4)]
    found = [[(each.event, each.code) for each in changes if each.code] for changes in seen]
    assert found == [[], [], [("finding", "VR205")], []]
    assert "finding-resolved" not in watched.events(contexts(5))
    gone = [watched.events(contexts(1)) for _ in range(4)]
    assert ["finding-resolved" in events for events in gone] == [False, False, True, False]


def test_a_process_on_two_gpus_is_a_change_on_each_and_stops_once() -> None:
    def world(state: str) -> World:
        both = World().gpu(0, used=HELD + OVERHEAD).gpu(1, used=HELD + OVERHEAD)
        both.process(100, state=state).files(100, minors=(0, 1), family=100)
        return both.charge(100, HELD).charge(100, HELD, gpu=1)

    watched = Watched(idle(2))
    assert [(each.event, each.gpus) for each in watched.sees(world("S"))] == [
        ("started", (0,)),
        ("started", (1,)),
    ]
    assert [(each.event, each.gpus) for each in watched.sees(world("T"))] == [("stopped", (0, 1))]


def test_an_exported_allocation_stays_the_same_ghost_when_one_of_its_holders_ends() -> None:
    def world(*pids: int) -> World:
        exported = World().gpu(0, used=GIB)
        for pid in pids:
            exported.process(pid).export(pid, GIB, description=7)
        return exported

    watched = Watched(world(300, 301))
    assert [each.code for each in watched.state.present if each.event == "ghost"] == ["VR103"]
    assert watched.events(world(301)) == []
    assert watched.events(idle()) == ["ghost-gone", "freed"]


def test_memory_does_not_grow_over_20000_readings_of_processes_that_come_and_go() -> None:
    """Process, ghosts and findings of ever new pids: only what the last reading contained is kept."""
    chance = random.Random(12)
    comparison = Comparison(64 * MIB)
    comparison.begin(*judged(ledger(idle())))
    taken = [_churned(chance, at) for at in range(64)]
    kinds: set[str] = set()
    early = 0
    for at in range(20_000):
        ledger_now, findings = taken[at % len(taken)]
        kinds |= {change.event for change in comparison.compare(_renamed(ledger_now, at), findings)}
        if at == 2_000:
            early = _kept()
    late = _kept()
    assert {"started", "ended", "grew", "shrank", "ghost", "ghost-gone", "freed", "gpu-lost"} <= kinds
    assert late - early < 200, (early, late)


def _kept() -> int:
    """Blocks of memory that Python has given out, whatever their size."""
    gc.collect()  # its own free lists count until then
    return sys.getallocatedblocks()


def _churned(chance: random.Random, at: int) -> tuple[Ledger, tuple]:  # type: ignore[type-arg]
    if at % 16 == 15:
        return judged(ledger(World().lost(0), ProbeRun("nvml", "lost", 0.01)))
    sizes = [chance.randrange(1, 8) * GIB for _ in range(chance.randrange(1, 5))]
    ghost = chance.randrange(2) or at % 16 in (3, 4)
    used = sum(sizes) + len(sizes) * (CONTEXT + OVERHEAD) + (HELD + OVERHEAD if ghost else 0)
    world = World().gpu(0, used=used)
    for place, nbytes in enumerate(sizes):
        world.cuda(1000 + place, nbytes + CONTEXT)
    if ghost:
        world.charge(200, HELD).process(201).files(201, family=200)
    return judged(ledger(world))


def _renamed(taken: Ledger, at: int) -> Ledger:
    """The same ledger with other processes every ten readings: identities are ever new."""
    epoch = at // 10

    def entries(gpu):  # type: ignore[no-untyped-def]
        for entry in gpu.entries:
            holder = entry.holder
            if entry.kind == "process" and holder is not None:
                yield replace(entry, holder=replace(holder, started_at=epoch, pid=holder.pid + epoch))
            else:
                yield entry

    return replace(taken, gpus=tuple(replace(gpu, entries=tuple(entries(gpu))) for gpu in taken.gpus))


def test_a_survey_of_nothing_changes_nothing() -> None:
    empty = Survey(program="", taken_at="", host=World().host, observations=(), probes=())
    comparison = Comparison(1)
    comparison.begin(build_ledger(empty), ())
    assert comparison.compare(build_ledger(empty), ()) == ()


def test_the_guide_names_every_event_of_every_group() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "watch.md").read_text()
    groups = re.findall(r"^- `(\w+)`: (.+?)(?=\n- |\n\n)", guide, re.MULTILINE | re.DOTALL)
    named = {event: group for group, events in groups for event in re.findall(r"`([a-z][a-z-]*)`", events)}
    assert named == {event: group for group, events in GROUPS.items() for event in events}


def shared(exporter: int | None, importer: int, *others: tuple[int, int]) -> World:
    """Pid 300 has exported memory to pid 301; each with what the driver charges it with, and *others*."""
    charges = [(300, exporter), (301, importer), *others]
    here = [(pid, nbytes) for pid, nbytes in charges if nbytes is not None]
    world = World().gpu(0, used=sum(nbytes + OVERHEAD for _, nbytes in here))
    for pid, nbytes in here:
        world.cuda(pid, nbytes)
    return world


def test_an_importer_takes_over_what_a_dead_exporter_was_charged_with() -> None:
    """As measured: the exporter is charged until it ends, and the importer from then on."""
    watched = Watched(shared(HELD, CONTEXT))
    changes = {each.event: each for each in watched.sees(shared(None, HELD)) if each.event != "freed"}
    assert sorted(changes) == ["ended", "grew"]
    assert (changes["grew"].pid, changes["grew"].nbytes) == (301, 4 * GIB)
    assert changes["grew"].taken_over_from == 300
    assert changes["ended"].taken_over_from is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # It grew by more than the other had, or by so much less that more than a context was freed.
        (shared(HELD, CONTEXT), shared(None, HELD + GIB)),
        (shared(HELD, CONTEXT), shared(None, CONTEXT + 2 * GIB)),
        # The other lives on.
        (shared(HELD, CONTEXT), shared(HELD, HELD)),
        # Two grew by the same: who has it is unknown.
        (shared(HELD, CONTEXT, (302, CONTEXT)), shared(None, HELD, (302, HELD))),
        # Two ended that had the same.
        (shared(HELD, CONTEXT, (302, HELD)), shared(None, HELD)),
    ],
)
def test_whoever_grows_otherwise_has_taken_over_nothing(before: World, after: World) -> None:
    grown = [each for each in Watched(before).sees(after) if each.event == "grew"]
    assert [each.taken_over_from for each in grown] == [None] * len(grown)


def test_what_it_grew_by_before_is_not_counted() -> None:
    """Small growth adds up until it is reported; what counts is what came in the very reading."""
    watched = Watched(shared(HELD, CONTEXT))
    assert watched.sees(shared(HELD, CONTEXT + 40 * MIB)) == []
    (grew,) = [each for each in watched.sees(shared(None, HELD + 40 * MIB)) if each.event == "grew"]
    assert (grew.nbytes, grew.taken_over_from) == (4 * GIB + 40 * MIB, 300)


def test_one_that_began_in_the_same_reading_has_taken_over_nothing() -> None:
    """A job that was started again holds what the last one held."""
    started = Watched(busy()).sees(busy(pid=101))
    assert {each.event for each in started} == {"ended", "started"}
    assert {each.taken_over_from for each in started} == {None}
