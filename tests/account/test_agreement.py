"""Whatever is held: rows, watch, service, history, policies and the sums of the ledger say the same of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given

from tests.diagnosis.test_any_ledger import balanced, ledgers
from tests.ledger.world import CONTEXT, World
from tests.policy.conftest import policy
from vram.diagnosis.changes import Comparison
from vram.diagnosis.engine import diagnose
from vram.diagnosis.watched import Key, items_of
from vram.history.schema import EXPORTED, GHOST
from vram.history.things import things
from vram.ledger.build import build_ledger
from vram.ledger.holds import find_holds
from vram.live_reader import LiveReading
from vram.model.ledger import Ledger, known_bytes
from vram.policy.subjects import GhostNames, subjects
from vram.report.process_rows import rows
from vram.serve.clock import Moment
from vram.serve.state import ServiceState
from vram.units import GIB

LEDGERS = ledgers.map(balanced)
WARNING = policy(do="warn-owner", match={}, all=True, notify={"terminals": True})
Sums = dict[object, int]


def sums(pairs: Iterable[tuple[object, int | None]]) -> Sums:
    found: Counter[object] = Counter()
    for key, nbytes in pairs:
        found[key] += nbytes or 0
    return {key: nbytes for key, nbytes in found.items() if nbytes}


def moment(seconds: float) -> Moment:
    return Moment(1_800_000_000.0 + seconds, 1000.0 + seconds, "boot")


def taken(state: ServiceState, ledger: Ledger, seconds: float) -> ServiceState:
    state.take(
        LiveReading(taken_at="", took_s=0.0, ledger=ledger, findings=diagnose(ledger)), moment(seconds)
    )
    return state


def names(ledger: Ledger) -> dict[int, Key]:
    return {at: (at,) for at in range(len(ledger.gpus))}


@given(LEDGERS)
def test_each_held_byte_is_in_one_hold(ledger: Ledger) -> None:
    held = [entry for gpu in ledger.gpus for entry in gpu.accounted if entry.kind_facts.held]
    holds = find_holds(ledger)
    assert sum(hold.nbytes or 0 for hold in holds) == known_bytes(held)
    parts = [id(part.entry) for hold in holds for part in hold.parts]
    assert len(parts) == len(set(parts))


@given(LEDGERS)
def test_no_two_holds_are_taken_for_the_same(ledger: Ledger) -> None:
    holds = find_holds(ledger)
    same = [(one, other) for one in holds for other in holds if one is not other and one.is_same(other)]
    assert not [pair for pair in same if pair[0].what != "parked"]


@given(LEDGERS)
def test_every_view_has_the_same_ghosts(ledger: Ledger) -> None:
    ghosts = [hold for hold in find_holds(ledger) if hold.what == "ghost"]
    by_gpu = sums((part.at, part.entry.nbytes) for hold in ghosts for part in hold.parts)

    shown = [row for row in rows(ledger) if row.state == "ghost"]
    assert sums((row.pid, row.nbytes) for row in shown) == sums(
        (hold.holder.pid if hold.holder else hold.dead_pid, hold.nbytes) for hold in ghosts
    )
    watched = [item for item in items_of(ledger, names(ledger)) if item.topic == "ghost"]
    assert sums((item.gpus[0][0], item.nbytes) for item in watched) == by_gpu
    by_number = sums((ledger.gpus[at].index, nbytes) for at, nbytes in by_gpu.items() if isinstance(at, int))
    state = taken(ServiceState(moment(0.0)), ledger, 1.0)
    assert sums((ghost.gpu, ghost.nbytes) for ghost in state.ghosts) == by_number
    if not any(gpu.instances for gpu in ledger.gpus):
        kept = [each for each in things(ledger, names(ledger), set()) if each.topic in (GHOST, EXPORTED)]
        assert sums((each.gpu[0], each.nbytes) for each in kept) == by_gpu


@given(LEDGERS)
def test_whose_memory_a_policy_warns_about_is_a_ghost_everywhere(ledger: Ledger) -> None:
    shown = {row.pid for row in rows(ledger, every_process=True) if row.state == "ghost"}
    for subject in subjects(WARNING, ledger):
        assert {each.pid for each in subject.holders} & shown


def test_processes_that_cannot_be_seen_are_rows_of_their_own_and_one_thing_of_the_history() -> None:
    """Nobody is named by those pids: watch and history follow the GPU's hidden memory as a whole."""
    world = World(initial_pid_namespace=False).gpu(0, used=2 * (GIB + CONTEXT))
    ledger = build_ledger(world.charge(200, GIB + CONTEXT).charge(210, GIB + CONTEXT).survey())
    assert {(row.pid, row.state) for row in rows(ledger)} == {(200, "hidden"), (210, "hidden")}
    (thing,) = things(ledger, names(ledger), set())
    assert thing.nbytes == 2 * (GIB + CONTEXT)


# ---- what users met: answers of one program that disagreed ----


def unseen_holder() -> Ledger:
    """A dead pid is charged, and nobody visible has its files."""
    return build_ledger(World().gpu(0, used=GIB + CONTEXT).charge(200, GIB + CONTEXT).survey())


def test_a_ghost_whose_holder_is_not_visible_is_one_for_the_service_too() -> None:
    ledger = unseen_holder()
    (row,) = rows(ledger)
    (ghost,) = taken(ServiceState(moment(0.0)), ledger, 1.0).ghosts
    assert (row.state, row.nbytes, ghost.nbytes, ghost.code) == ("ghost", *[GIB + CONTEXT] * 2, "VR105")


def exported(*pids: int) -> Ledger:
    """These processes hold one exported handle, whose maker is dead."""
    world = World().gpu(0, used=GIB)
    for pid in pids:
        world.process(pid).files(pid, context=False).export(pid, GIB, description=7)
    return build_ledger(world.survey())


def test_a_hold_goes_on_when_one_of_its_holders_ends() -> None:
    """The service's "since", the policy's delay and the history's hold: one answer."""
    before, after = exported(300, 310), exported(310)
    state = taken(taken(ServiceState(moment(0.0)), before, 1.0), after, 61.0)
    assert [ghost.since for ghost in state.ghosts] == [moment(1.0)]
    ghosts = GhostNames()
    first, second = ([each.key for each in subjects(WARNING, each, names=ghosts)] for each in (before, after))
    assert first == second != []
    comparison = Comparison(1)
    comparison.begin(before, ())
    assert [change.event for change in comparison.compare(after, ())] == []
