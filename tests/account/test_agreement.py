"""Whatever is held: every view, plan, policy and record says the same of it as the sums of the ledger."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.diagnosis.test_any_ledger import balanced, ledgers
from tests.ledger.world import CONTEXT, World
from tests.policy.conftest import policy
from vram.diagnosis.changes import Comparison
from vram.diagnosis.engine import diagnose
from vram.diagnosis.leftover import GHOST_CODES, ghost_code
from vram.diagnosis.tracker import Key, items_of
from vram.diagnosis.verdict import judge
from vram.fleet.judge import shares as fleet_shares
from vram.history.questions import Questions
from vram.history.schema import EXPORTED, GHOST
from vram.history.store import HistoryStore
from vram.history.things import things, topic_of
from vram.ledger.build import build_ledger
from vram.ledger.holds import find_holds, in_ledger_order
from vram.ledger.processes import identity, is_healthy, living_holders, processes
from vram.live_reader import LiveReading
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.model.moment import Moment, rfc3339
from vram.model.oom import OomMessage
from vram.model.slurm import JobClaim
from vram.oom.live import MAX_HOLDINGS, match_gpu
from vram.policy.kinds import subjects
from vram.policy.subjects import GhostNames
from vram.reclaim.candidates import leftovers
from vram.report.process_rows import rows
from vram.report.process_tree import HeldBytes, ProcessNode, who
from vram.report.screen import certainty
from vram.serve.state import ServiceState
from vram.slurm import ownership
from vram.slurm.ownership import Judged
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
        kept = [each for each in things(ledger, names(ledger)) if topic_of(each) in (GHOST, EXPORTED)]
        assert sums((each.gpus[0][0], each.nbytes) for each in kept) == by_gpu


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
    (thing,) = things(ledger, names(ledger))
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


# ---- since when: one answer of watch, service, policies and history ----


class Step(Struct, frozen=True):
    """Who holds the exported handle, who holds the memory of dead pid 200, and whether the GPU answers."""

    exported: frozenset[int]
    orphaned: frozenset[int]
    is_lost: bool = False

    def ledger(self) -> Ledger:
        if self.is_lost:
            return build_ledger(World().lost(0).survey())
        charged = GIB + CONTEXT if self.orphaned else 0
        world = World().gpu(0, used=charged + (GIB if self.exported else 0))
        for pid in sorted(self.exported | self.orphaned):
            world.process(pid)
        for pid in sorted(self.exported):
            world.files(pid, context=False).export(pid, GIB, description=7)
        if self.orphaned:
            world.charge(200, charged)
        for pid in sorted(self.orphaned):
            world.files(pid, family=200)
        return build_ledger(world.survey())


def people(*pids: int) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.sampled_from(pids))


STEPS = st.builds(
    Step,
    exported=people(300, 310, 320),
    orphaned=people(400, 410),
    is_lost=st.sampled_from([False, False, False, True]),
)


def ghosts(ledger: Ledger) -> list[Hold]:
    return [hold for hold in find_holds(ledger) if hold.what == "ghost"]


class Watched:
    """Since which reading each ghost is there, for a user who reads only what `vram watch` prints."""

    def __init__(self) -> None:
        self._comparison = Comparison(1)
        self._reported: dict[int | None, int] = {}
        self._good: list[int] = []

    def read(self, at: int, ledger: Ledger) -> None:
        if ledger.gpus[0].status == "ok":
            self._good.append(at)
        if at == 0:
            changes = self._comparison.begin(ledger, ()).present
        else:
            changes = self._comparison.compare(ledger, ())
        for change in changes:
            if change.event == "ghost-gone":
                del self._reported[change.dead_pid]
            elif change.event == "ghost":  # confirmed: the good reading before this one had shown it
                self._reported[change.dead_pid] = self._good[-2] if at else 0

    def since(self, dead_pid: int | None) -> int:
        """One that is shown and was not reported yet has come with the last reading."""
        return self._reported.get(dead_pid, self._good[-1])


class Named:
    """Since which reading a policy has one name for each ghost, in all readings without a gap."""

    def __init__(self) -> None:
        self.names = GhostNames()
        self._since: dict[str, int] = {}

    def read(self, at: int, ledger: Ledger) -> None:
        self.names.read(ledger)
        holds = ghosts(ledger)
        present = {name(hold.entries) for hold in holds for name in (self.names.ghost, self.names.holders)}
        self._since = {key: self._since.get(key, at) for key in present}

    def since(self, name: str) -> int:
        return self._since[name]


@given(first=STEPS, then=st.lists(STEPS, min_size=1, max_size=10))
def test_since_when_a_ghost_is_there_has_one_answer(first: Step, then: list[Step]) -> None:
    """Whoever of its holders comes and goes, and also where the GPU does not answer for a while.

    Policies alone begin anew after such a reading: what leaves a doubt starts their delay again. A warning is
    named by the first holders, and may be older, as one of another ghost of theirs. What ends processes is
    named by the present ones, and may only be younger.
    """
    steps = [replace(first, is_lost=False), *then]
    state, watched, named, lost_at = ServiceState(moment(0.0)), Watched(), Named(), -1
    with TemporaryDirectory() as folder:
        store = HistoryStore(os.path.join(folder, "history.sqlite"), interval_s=10.0)
        for at, step in enumerate(steps):
            ledger = step.ledger()
            taken(state, ledger, 10.0 * at)
            watched.read(at, ledger)
            named.read(at, ledger)
            store.record(ledger, moment(10.0 * at))
            lost_at = at if step.is_lost else lost_at
            connection = store.connection
            assert connection is not None
            recorded = {
                held.dead_pid: held.since for held in Questions(connection).holders_at(None, None).holders
            }
            for hold in ghosts(ledger):
                since = watched.since(hold.dead_pid)
                assert state.since(hold) == moment(10.0 * since)
                assert recorded[hold.dead_pid] == rfc3339(moment(10.0 * since).wall)
                known_since = max(since, lost_at + 1)
                assert named.since(named.names.ghost(hold.entries)) <= known_since
                assert named.since(named.names.holders(hold.entries)) >= known_since
        store.close()


def test_where_one_ghost_became_two_the_first_goes_on_and_both_are_as_old() -> None:
    """Two handles of two processes are one ghost; then each process has one handle, and there are two."""

    def handles(*shares: tuple[int, int]) -> Ledger:
        world = World().gpu(0, used=2 * GIB)
        for pid in dict.fromkeys(pid for pid, _ in shares):
            world.process(pid).files(pid, context=False)
        for pid, description in shares:
            world.export(pid, GIB, description=description)
        return build_ledger(world.survey())

    before, after = handles((300, 7), (310, 7), (300, 8), (310, 8)), handles((300, 7), (310, 8))
    assert (len(ghosts(before)), len(ghosts(after))) == (1, 2)
    state = taken(taken(ServiceState(moment(0.0)), before, 1.0), after, 61.0)
    assert [state.since(hold) for hold in ghosts(after)] == [moment(1.0)] * 2
    comparison = Comparison(1)
    comparison.begin(before, ())
    compared = [comparison.compare(after, ()) for _ in range(2)]
    assert [change.event for changes in compared for change in changes] == ["shrank", "ghost"]


# ---- findings, who, plans, Slurm, oom, fleet: the same holds, the same bytes, the same states ----


def by_number(holds: Iterable[Hold]) -> Sums:
    return sums((part.gpu, part.entry.nbytes) for hold in holds for part in hold.parts)


@given(LEDGERS)
def test_findings_are_about_holds(ledger: Ledger) -> None:
    """Each ghost has findings of its bytes; so has each process that works, and each stopped one."""
    holds, findings = find_holds(ledger), diagnose(ledger)
    ghosts = sum(hold.known_bytes for hold in holds if hold.what == "ghost")
    about = [each for each in findings if each.code in GHOST_CODES]
    assert sum(finding.nbytes or 0 for finding in about) == ghosts
    for finding in about:
        (share,) = finding.holds
        assert sum(nbytes for _, nbytes in share.bytes_by_gpu) == finding.nbytes
        assert [hold.what for hold in holds if share.is_of(hold)] == ["ghost"]
    working = [hold for hold in find_holds(ledger, empty=True) if hold.what == "process"]
    assert sums((each.pids, each.nbytes) for each in findings if each.code == "VR206") == sums(
        ((hold.holders[0].pid,), hold.nbytes) for hold in working if is_healthy(hold.holders[0])
    )
    parked = {(each.pid, each.started_at) for each in ledger.parked}
    stopped = {pid for each in findings if each.code == "VR201" for pid in each.pids}
    for hold in holds:
        if hold.state == "stopped" and hold.known_bytes and identity(hold.holder) not in parked:
            assert hold.pid in stopped


@given(LEDGERS)
def test_what_a_screen_calls_certain_is_certain_in_its_row(ledger: Ledger) -> None:
    ghosts = [row for row in rows(ledger, every_process=True) if row.state == "ghost" and not row.certain]
    likely = {pid for row in ghosts for pid in (row.pid, *row.dead_pids)}
    for finding in diagnose(ledger):
        for hold in finding.holds if finding.code in GHOST_CODES else ():
            people = {hold.dead_pid, *finding.pids}
            assert hold.certain or not likely.isdisjoint(people)


@given(LEDGERS)
def test_who_has_every_held_byte_once(ledger: Ledger) -> None:
    report = who(ledger)
    found = [held for group in report.groups for node in group.processes for held in held_below(node)]
    counted = [held for held in (*found, *report.unnamed) if held.shared_with is None]
    beside = ("system", "overhead", "preallocated", "cpu", "withheld")
    assert sums((held.gpu, held.nbytes) for held in counted if held.kind not in beside) == by_number(
        find_holds(ledger)
    )


def held_below(node: ProcessNode) -> Iterator[HeldBytes]:
    yield from node.holds
    for child in node.children:
        yield from held_below(child)


@given(LEDGERS)
def test_whom_a_plan_ends_holds_a_ghost_for_certain(ledger: Ledger) -> None:
    """All who hold what is to be freed, and no process that works; a name is needed for anybody else."""
    holds = find_holds(ledger, empty=True)
    ghosts = {id(entry): hold for hold in holds if hold.what == "ghost" for entry in hold.entries}
    working = {hold.pid for hold in holds if hold.what == "process" and is_healthy(hold.holders[0])}
    for leftover in leftovers(ledger, processes(ledger)):
        entries = [entry for _, entry in leftover.entries]
        assert all(id(entry) in ghosts and entry.confidence == "fact" for entry in entries)
        assert {each.pid for entry in entries for each in living_holders(entry)} == set(leftover.pids)
        assert working.isdisjoint(leftover.pids)


@given(LEDGERS)
def test_slurm_counts_every_held_byte_once(ledger: Ledger) -> None:
    known = {
        pid: Judged(memory=memory, whose="other", claim=JobClaim(), command="")
        for pid, memory in processes(ledger).items()
    }
    parts = in_ledger_order(find_holds(ledger))
    pieces = list(ownership.pieces(parts, known))
    assert sums((piece.gpu, piece.nbytes) for piece in pieces) == sums(
        (part.gpu, part.entry.nbytes) for part in parts if part.entry.hidden_by != "end"
    )
    # Nobody is named for what no visible process holds.
    unheld = sums(
        (hold.what, hold.nbytes)
        for hold in find_holds(ledger)
        if hold.what == "unattributed" and not any(map(living_holders, hold.entries))
    )
    assert sum(unheld.values()) <= sum(piece.nbytes or 0 for piece in pieces if piece.pid is None)


@given(LEDGERS)
def test_oom_has_the_holds_of_its_gpu(ledger: Ledger) -> None:
    reading = OomMessage(dialect="", wording="")
    for gpu in ledger.gpus:
        shown = match_gpu(reading, ledger, gpu, "").holdings
        held = [
            (part.entry.nbytes, ghost_code(part.entry) if hold.what == "ghost" else None)
            for hold in find_holds(ledger, empty=True)
            for part in hold.parts
            if part.gpu == gpu.index
        ]
        assert Counter((each.nbytes, each.finding) for each in shown) <= Counter(held)
        assert len(shown) == min(len(held), MAX_HOLDINGS)


@given(LEDGERS)
def test_the_shares_of_a_fleet_are_its_holds(ledger: Ledger) -> None:
    holds = find_holds(ledger)
    left = {verdict.index: verdict.entries for verdict in judge(ledger, leftovers=True)}
    shares = list(fleet_shares(ledger, left, "user"))
    assert sum(share.held_bytes for share in shares) == sum(hold.known_bytes for hold in holds)
    people = sums(
        (each.user if (each := hold.holder) else None, hold.nbytes) for hold in holds if hold.holder
    )
    named = sums((share.name, share.held_bytes) for share in shares)
    assert all(named[name] >= nbytes for name, nbytes in people.items() if name is not None)


def test_who_holds_two_ghosts_is_certain_of_one_and_likely_of_the_other() -> None:
    """The screen called both likely, because one process held both; the rows never did."""
    likely = Entry(kind="exported", nbytes=GIB, holder=person(300), confidence="likely", medium="handle")
    certain = Entry(kind="orphaned", nbytes=GIB, holder=person(300), charged_pid=200, proof="relative")
    ledger = ledger_of(certain, likely)
    said = {finding.code: certainty(finding) for finding in diagnose(ledger)}
    assert (said["VR101"], said["VR103"]) == ("certain", "likely")


def test_a_younger_ghost_of_the_same_holder_has_an_age_of_its_own() -> None:
    """The service gave both the age of the older one: it found them by code, GPU and pid."""
    older = Entry(kind="orphaned", nbytes=GIB, holder=person(300), charged_pid=200)
    younger = Entry(kind="orphaned", nbytes=2 * GIB, holder=person(300), charged_pid=201)
    ledger = ledger_of(older, younger)
    state = taken(taken(ServiceState(moment(0.0)), ledger_of(older), 1.0), ledger, 61.0)
    found = {
        finding.nbytes: [hold for hold in find_holds(ledger) if finding.holds[0].is_of(hold)]
        for finding in diagnose(ledger)
        if finding.code == "VR101"
    }
    assert {nbytes: [state.since(hold) for hold in holds] for nbytes, holds in found.items()} == {
        GIB: [moment(1.0)],
        2 * GIB: [moment(61.0)],
    }


def test_oom_does_not_call_the_own_memory_of_a_process_a_ghost() -> None:
    own = Entry(kind="process", nbytes=2 * GIB, holder=person(300))
    ghost = Entry(kind="orphaned", nbytes=GIB, holder=person(300), charged_pid=200, confidence="likely")
    ledger = ledger_of(own, ghost)
    shown = match_gpu(OomMessage(dialect="", wording=""), ledger, ledger.gpus[0], "").holdings
    assert [(each.nbytes, each.finding) for each in shown] == [(2 * GIB, None), (GIB, "VR101")]


def test_a_process_that_is_charged_with_nothing_countable_still_works() -> None:
    """Where figures overlap, nothing is left to count for it; no ghost that it holds may end it."""
    own = Entry(kind="process", nbytes=0, claimed=GIB, holder=person(300))
    ghost = Entry(kind="orphaned", nbytes=GIB, holder=person(300), charged_pid=200, proof="relative")
    ledger = ledger_of(ghost, own)
    assert [hold.what for hold in find_holds(ledger)] == ["ghost"]
    assert [hold.what for hold in find_holds(ledger, empty=True)] == ["ghost", "process"]
    assert leftovers(ledger, processes(ledger)) == []


def person(pid: int) -> Holder:
    return Holder(
        pid=pid, started_at=1, user="ada", command="python", alive=True, state="S", executable="/bin/python"
    )


def ledger_of(*entries: Entry) -> Ledger:
    total = known_bytes(entries)
    gpu = GpuLedger(index=0, uuid="GPU-0", name="H200", total_bytes=total, entries=entries)
    empty = build_ledger(World().gpu(0, used=0).survey())
    return replace(empty, gpus=(gpu,))
