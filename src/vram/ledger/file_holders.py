"""Processes that have a GPU's files open and are not charged: groups of them, and whose memory they hold.

A fork inherits the driver's files, and memory lives as long as any copy of them. So the holders of a
dead pid's memory are found among processes that have the GPU open and are charged nothing themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Literal

from msgspec import Struct

from vram.ledger.ancestry import NO_RANK
from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey
from vram.model.ledger import Proof
from vram.model.process import ProcessFacts

# Descriptors on a GPU of a process that initialised CUDA and made no context (H200, driver 580.159).
_ONLY_INITIALISED = 4


class Family(Struct, frozen=True):
    """Processes that share open file descriptions on one GPU, by fork or by passing them."""

    pids: tuple[int, ...]
    descriptions: frozenset[int]
    is_numbered: bool = True
    """False: not all of their descriptions are known, so they may share some with anybody."""


def possible_holders(survey: IndexedSurvey, minor: int | None, charged: Iterable[int]) -> list[int]:
    """Processes that could hold CUDA memory of the GPU and are not charged for any.

    A context shows as many descriptors on the GPU (20 on driver 580.159). A process that only
    looked for GPUs has 4. Who has no more than that, or far fewer than the best candidate,
    has no context.
    """
    return likely_holders(uncharged(survey, minor, charged, mapped=True))


def likely_holders(uncharged: Mapping[int, int]) -> list[int]:
    """Those of *uncharged* that have enough descriptors for a context."""
    most = max(uncharged.values(), default=0)
    return [pid for pid, count in uncharged.items() if count > _ONLY_INITIALISED and count * 2 >= most]


def uncharged(
    survey: IndexedSurvey, minor: int | None, charged: Iterable[int], *, mapped: bool
) -> dict[int, int]:
    """Processes with files of the GPU that are not charged for it, and how many descriptors each has.

    Who runs CUDA has *mapped* some. Tools that watch map nothing, and neither does a process that executed
    another program, or was handed the descriptors, and keeps memory by them alone.
    """
    spoken_for = set(charged)
    return {
        pid: opened.descriptors
        for pid, opened in survey.opened(minor).items()
        if pid not in spoken_for and survey.alive(pid) and (survey.files[pid].mappings != 0) == mapped
    }


def with_files_open(survey: IndexedSurvey, gpu: GpuObservations) -> list[int]:
    """Living processes that have the GPU's files open; where its number is unknown, files of no other GPU."""
    minor = gpu.facts.minor if gpu.facts else None
    found = survey.opened(minor) if minor is not None else _on_no_other(survey, gpu)
    return sorted(filter(survey.alive, found))


def _on_no_other(survey: IndexedSurvey, gpu: GpuObservations) -> Iterator[int]:
    others = {each.facts.minor for each in survey.gpus.values() if each.facts and each is not gpu}
    for pid, facts in survey.files.items():
        if any(file.kind == "gpu" and file.minor not in others for file in facts.files):
            yield pid


def families(survey: IndexedSurvey, pids: Sequence[int], minor: int | None) -> list[Family]:
    """Group *pids* by the descriptions that they share; oldest pid first in each."""
    opened = survey.opened(minor)
    reported = [opened[pid].descriptions if pid in opened else () for pid in pids]
    return [
        Family(
            tuple(sorted({pids[at] for at in group})),
            frozenset(chain.from_iterable(reported[at] for at in group)),
            all(survey.is_numbered(pids[at], minor) for at in group),
        )
        for group in joined(reported)
    ]


def joined(descriptions: Sequence[Iterable[int]]) -> list[list[int]]:
    """Join the places of all sets that have a description in common, directly or through others.

    A group comes where its last member does.
    """
    last_with: dict[int, int] = {}
    head = list(range(len(descriptions)))

    def head_of(at: int) -> int:
        while head[at] != at:
            head[at] = at = head[head[at]]
        return at

    for at, own in enumerate(descriptions):
        for description in own:
            other = last_with.get(description)
            last_with[description] = at
            if other is not None:
                head[head_of(other)] = at
    groups: dict[int, list[int]] = {}
    for at in range(len(descriptions)):
        groups.setdefault(head_of(at), []).append(at)
    return [groups[at] for at in sorted(groups)]


def sources(
    survey: IndexedSurvey, pids: Sequence[int], minor: int | None, charged: Sequence[int]
) -> dict[int, int | None]:
    """For each of *pids* the living, charged process whose very files it holds, if there is one.

    Of several it is the one that the list names first.
    """
    opened = survey.opened(minor)
    ranks: dict[int, int] = {}
    unnumbered: dict[int, int] = {}
    first_with: dict[int, int] = {}
    for rank, other in enumerate(charged):
        theirs = opened[other].descriptions if other in opened else ()
        ranks.setdefault(other, rank)
        if not survey.is_numbered(other, minor):
            unnumbered.setdefault(other, rank)
        for description in theirs:
            first_with.setdefault(description, rank)
    # Where the kernel does not number descriptions, a charged parent is the likely source.
    any_above = survey.ancestry.least_above(ranks)
    unnumbered_above = survey.ancestry.least_above(unnumbered)

    @cache
    def same_files(own: tuple[int, ...]) -> int:
        return min((first_with[each] for each in own if each in first_with), default=NO_RANK)

    def source(pid: int) -> int | None:
        own = opened[pid].descriptions if pid in opened else ()
        rank = same_files(own)
        if not survey.is_numbered(pid, minor):
            rank = min(rank, any_above(pid))
        elif unnumbered:
            rank = min(rank, unnumbered_above(pid))
        return charged[rank] if rank != NO_RANK else None

    return {pid: source(pid) for pid in pids}


# ---- who holds the memory of dead pids: two questions, answered apart ----
#
# Is this process a holder? A process that has a context's files open and no charge of its own holds
# another process's memory. If no living charged process can be the source of those files, their owner
# is a dead charged pid: that is a fact, whatever else cannot be read.
#
# Which dead pid is it, and are these all the holders? With one dead pid there is no choice. With
# several, session, group and parent decide where they can; where they cannot, "each of these holds the
# memory of one of those" is a fact about the set. Processes that may not be read can only be further
# holders.


class Match(Struct, frozen=True):
    """The families that hold one dead pid's memory.

    ``proof``: what proves that each of them holds memory of a dead pid. ``sharing`` "one": there are
    several dead pids or several families, and which of these families holds this pid's memory is unknown.
    ``unheld``: how many of the dead pids with these same families are held by none of them.
    """

    families: tuple[Family, ...] = ()
    proof: Proof | None = None
    sharing: Literal["one"] | None = None
    unheld: int = 0


def match(
    survey: IndexedSurvey,
    dead: Sequence[int],
    families: Sequence[Family],
    charged: Sequence[int],
    minor: int | None = None,
) -> dict[int, Match]:
    """For every dead pid, who holds its memory. *charged* are the living processes that the list names."""
    gone = frozenset(dead)
    holders = frozenset(pid for family in families for pid in family.pids)
    known = ((pid, survey.processes[pid][1]) for pid in holders if pid in survey.processes)
    makers = [pid for pid, facts in known if makes_its_own_context(facts)]
    possible = PossibleSources(survey, (*charged, *makers), minor)
    proofs = [
        left_behind(survey, family.pids, holders, gone, possible, is_numbered=family.is_numbered)
        for family in families
    ]
    proven = [at for at, proof in enumerate(proofs) if proof]
    linked = _links(survey, dead, families)
    elsewhere = {pid for pid in linked if not linked[pid] and unreadable_relatives(survey, pid)}
    paired = _pairs(linked, proven, elsewhere, families)
    taken = {at for found in paired.values() for at in found}
    result = {
        pid: Match(tuple(families[at] for at in found), _weakest(proofs[at] for at in found))
        for pid, found in paired.items()
    }
    left = [at for at in proven if at not in taken]
    likely = [family for at, family in enumerate(families) if at not in taken]
    proof = _weakest(proofs[at] for at in left)
    open_pids = [pid for pid in dead if pid not in paired]
    return result | _shared_out(open_pids, [families[at] for at in left], likely, proof)


def _weakest(proofs: Iterable[Proof | None]) -> Proof | None:
    found = set(proofs)
    if not found or None in found:
        return None
    return "adopted" if "adopted" in found else "relative"


def _links(survey: IndexedSurvey, dead: Iterable[int], families: Sequence[Family]) -> dict[int, list[int]]:
    """For every dead pid the places of those families of which it is a parent, group or session."""
    linked: dict[int, list[int]] = {pid: [] for pid in dead}
    for at, family in enumerate(families):
        known = (survey.processes[pid][1] for pid in family.pids if pid in survey.processes)
        named = {pid for facts in known for pid in (facts.parent, facts.group, facts.session)}
        for pid in named & linked.keys():
            linked[pid].append(at)  # type: ignore[index]  # None is no key
    return linked


def _pairs(
    linked: dict[int, list[int]],
    proven: Sequence[int],
    elsewhere: Collection[int],
    families: Sequence[Family],
) -> dict[int, list[int]]:
    """Dead pids whose holders no other pid can claim: by session, group or parent, each for each.

    A session or group names its leader, and another one that died in it may be the owner instead. So
    these links count only where every dead pid has one of its own (*elsewhere*: to processes that may
    not be read), or where it is the only dead pid.
    """
    surely = set(proven)
    if len(linked) == 1:
        ((pid, found),) = linked.items()
        own = [at for at in found if at in surely] or list(proven)
        return {pid: own} if own and _may_be_one_owners(families[at] for at in own) else {}
    claims = Counter(at for found in linked.values() for at in found)
    clear = {
        pid: found
        for pid, found in linked.items()
        if found
        and all(at in surely and claims[at] == 1 for at in found)
        and _may_be_one_owners(families[at] for at in found)
    }
    everybody_has_one = len(clear) + len(elsewhere) == len(linked)
    if not everybody_has_one or any(at not in claims for at in proven):
        return {}
    return clear | {pid: [] for pid in elsewhere}


def _may_be_one_owners(families: Iterable[Family]) -> bool:
    """Whether one dead process may have been the source of all these files.

    Its children share its open file descriptions, so where the kernel numbers those one owner has
    one family.
    """
    return sum(bool(family.descriptions) for family in families) <= 1


def _shared_out(
    open_pids: Sequence[int], proven: list[Family], likely: list[Family], proof: Proof | None
) -> dict[int, Match]:
    """What is left of the dead, each with all that is left of the families."""
    families = tuple(proven or likely)
    # More families than owners: one of them has its files from somewhere else.
    told_apart = sum(bool(family.descriptions) for family in families)
    certain = bool(proven) and told_apart <= len(open_pids)
    ambiguous = bool(families) and (len(families) > 1 or len(open_pids) > 1)
    # Where descriptions are not numbered, each process is a family, and how many owners there were is open.
    alone = len(open_pids) - told_apart if certain and told_apart == len(families) else 0
    shared = Match(families, proof if certain else None, "one" if ambiguous else None, alone)
    return dict.fromkeys(open_pids, shared)


def unreadable_relatives(survey: IndexedSurvey, dead: int) -> list[int]:
    """Living processes of a dead pid's session, group or children whose files we may not read."""
    if survey.made_relatives is None:
        survey.made_relatives = _relatives(survey)
    return [pid for pid in survey.made_relatives.get(dead, ()) if pid != dead]


def _relatives(survey: IndexedSurvey) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid, (_, facts) in sorted(survey.processes.items()):
        if facts.is_dead or facts.forked is False or pid in survey.files or survey.may_read_files_of(pid):
            continue
        for other in {facts.parent, facts.group, facts.session} - {None}:
            found.setdefault(other, []).append(pid)  # type: ignore[arg-type]  # None is left out
    return found


# ---- what proves that a process is left behind: it holds the memory of a dead one, and no living one's ----
#
# A fact ends processes: `vram free`, policies and the epilog act on it without being told a name. So each
# fact below is one that no other user can bring about for a healthy process of another's; docs/decisions/19
# has the table of what can be forged, and of what then follows. Whatever is not proven is "likely", and
# "likely" is never ended without a name.


_ALWAYS = -1  # the start of a process that does not show it: it may have been there before all others


def left_behind(
    survey: IndexedSurvey,
    family: Collection[int],
    holders: Collection[int],
    dead: Collection[int],
    possible: PossibleSources,
    *,
    is_numbered: bool,
) -> Proof | None:
    """What proves that the files of a *family* come from one of the *dead*; None where nothing does.

    They were forked and never executed a program, which would have closed the files, and whoever of them has
    no other of the *holders* above it has lost its parent. A program that is just making its own context has
    files and no charge too, for up to six seconds where many start at once (H200). But it was executed, or
    its parent lives, or the driver runs a thread in it, as it does from cuInit on. For drivers that do not,
    who is not of a dead pid's session, group or children either is ended only when it is seen twice.
    """
    if not dead or survey.lists_other_pids or survey.unfinished:
        return None
    proof: Proof = "relative"
    for pid in family:
        if pid not in survey.processes:
            return None
        ref, facts = survey.processes[pid]
        eldest = _eldest(survey, pid, holders)
        if facts.initialised_cuda or eldest is None or not _has_lost_its_parent(survey, eldest, dead):
            return None
        if not _is_of(facts, dead):
            proof = "adopted"
        if possible.may_be_source_of(ref.started_at, facts, is_numbered=is_numbered):
            return None
    return proof


def _eldest(survey: IndexedSurvey, pid: int, holders: Collection[int]) -> int | None:
    """The first of the *holders* above *pid*; None where one of them has executed a program."""
    seen: set[int] = set()
    while pid not in seen:
        seen.add(pid)
        known = survey.processes.get(pid)
        if known is None or known[1].forked is False:
            return None
        parent = known[1].parent
        if parent is None or parent not in holders:
            return pid
        pid = parent
    return None


def _has_lost_its_parent(survey: IndexedSurvey, pid: int, dead: Collection[int]) -> bool:
    facts = survey.processes[pid][1]
    return facts.parent in dead or _was_adopted(survey, pid, facts)


def _is_of(facts: ProcessFacts, dead: Collection[int]) -> bool:
    return any(pid in dead for pid in (facts.parent, facts.group, facts.session))


def _was_adopted(survey: IndexedSurvey, pid: int, facts: ProcessFacts) -> bool:
    """Whether its own parent is dead: the kernel then gives it to an init, or to one that asked for such.

    Sessions are inherited. One who is no leader of its session and whose parent is of another session
    was not forked by that parent.
    """
    if facts.parent is None or facts.parent <= 1:
        return True
    known = survey.processes.get(facts.parent)
    if known is None:
        return False
    parent = known[1]
    if parent.namespace_pids and parent.namespace_pids[-1] == 1:
        return True
    return bool(facts.session) and facts.session != pid and parent.session != facts.session


def makes_its_own_context(facts: ProcessFacts) -> bool:
    """Whether files that a process maps, and is not charged for, are its own: it was executed, or the driver
    runs a thread in it."""
    return facts.forked is False or bool(facts.initialised_cuda)


class PossibleSources:
    """Living processes that may have given their files to a process that lost its parent.

    Where all open file descriptions of both are numbered, one that shares none with a family is not its
    source. Else it may be: not numbered means "may share". The earliest start of each user's, and of each
    session of theirs, decides then.
    """

    def __init__(self, survey: IndexedSurvey, owners: Iterable[int], minor: int | None) -> None:
        self._seen = survey
        self._unknown, self._all = _Earliest(), _Earliest()
        for pid in owners:
            if pid not in survey.processes:
                continue
            ref, facts = survey.processes[pid]
            start = _ALWAYS if ref.started_at is None else ref.started_at
            self._all.add(start, facts)
            if not survey.is_numbered(pid, minor):
                self._unknown.add(start, facts)

    def may_be_source_of(self, started_at: int | None, facts: ProcessFacts, *, is_numbered: bool) -> bool:
        """Whether one of them started before this process, as root or its user, and may be of its session."""
        leader = self._seen.processes.get(facts.session or 0)
        anywhere = leader is None or leader[1].is_dead
        start = (self._unknown if is_numbered else self._all).of(facts, anywhere=anywhere)
        return start is not None and (started_at is None or start <= started_at)


class _Earliest:
    """When the first process of each user, and of each session of theirs, started."""

    def __init__(self) -> None:
        self._by_user: dict[int | None, int] = {}
        self._by_session: dict[tuple[int | None, int | None], int] = {}

    def add(self, start: int, facts: ProcessFacts) -> None:
        session = (facts.uid, facts.session)
        self._by_user[facts.uid] = min(start, self._by_user.get(facts.uid, start))
        self._by_session[session] = min(start, self._by_session.get(session, start))

    def of(self, facts: ProcessFacts, *, anywhere: bool) -> int | None:
        """The earliest start of root's and of this user's, in its session or *anywhere*."""
        found = (
            self._by_user.get(uid) if anywhere else self._by_session.get((uid, facts.session))
            for uid in (0, facts.uid)
        )
        return min((start for start in found if start is not None), default=None)
