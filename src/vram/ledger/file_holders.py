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

from vram.ledger.ancestry import NOBODY
from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey
from vram.ledger.proof import PossibleSources, left_behind
from vram.model.ledger import Proof

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
    return likely_holders(uncharged(survey, minor, charged))


def likely_holders(uncharged: Mapping[int, int]) -> list[int]:
    """Those of *uncharged* that have enough descriptors for a context."""
    most = max(uncharged.values(), default=0)
    return [pid for pid, count in uncharged.items() if count > _ONLY_INITIALISED and count * 2 >= most]


def uncharged(survey: IndexedSurvey, minor: int | None, charged: Iterable[int]) -> dict[int, int]:
    """Processes that run CUDA on the GPU and are not charged for it, and how many descriptors each has.

    A monitoring tool has descriptors too, and maps none of them.
    """
    present = _uncharged(survey, minor, charged)
    return {pid: count for pid, count in present.items() if survey.files[pid].mappings != 0}


def unmapped(survey: IndexedSurvey, minor: int | None, charged: Iterable[int]) -> dict[int, int]:
    """The same of those that map nothing: tools that watch, and whoever executed another program or was
    handed the descriptors, and keeps memory by them alone."""
    present = _uncharged(survey, minor, charged)
    return {pid: count for pid, count in present.items() if survey.files[pid].mappings == 0}


def _uncharged(survey: IndexedSurvey, minor: int | None, charged: Iterable[int]) -> dict[int, int]:
    spoken_for = set(charged)
    return {
        pid: opened.descriptors
        for pid, opened in survey.opened(minor).items()
        if pid not in spoken_for and survey.alive(pid)
    }


def with_files_open(survey: IndexedSurvey, gpu: GpuObservations) -> list[int]:
    """Everybody alive who has the GPU's files open; where its number is unknown, files of no other GPU."""
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
        return min((first_with[each] for each in own if each in first_with), default=NOBODY)

    def source(pid: int) -> int | None:
        own = opened[pid].descriptions if pid in opened else ()
        rank = same_files(own)
        if not survey.is_numbered(pid, minor):
            rank = min(rank, any_above(pid))
        elif unnumbered:
            rank = min(rank, unnumbered_above(pid))
        return charged[rank] if rank != NOBODY else None

    return {pid: source(pid) for pid in pids}


# ---- who holds the memory of dead pids: two questions, answered apart ----
#
# Is this process a holder? A process that has a context's files open and no charge of its own holds
# somebody else's memory. If no living charged process can be the source of those files, their owner
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
    possible = PossibleSources(survey, charged, minor)
    gone = frozenset(dead)
    holders = frozenset(pid for family in families for pid in family.pids)
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
    """Dead pids whose holders nobody else can claim: by session, group or parent, each for each.

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
