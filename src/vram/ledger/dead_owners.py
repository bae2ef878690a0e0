"""Who holds the memory of dead pids: two questions, answered apart.

*Is this process a holder?* A process that has a context's files open and no charge of its own holds
somebody else's memory. If no living charged process can be the source of those files, their owner is
a dead charged pid: that is a fact, whatever else cannot be read.

*Which dead pid is it, and are these all the holders?* With one dead pid there is no choice. With
several, session, group and parent decide where they can; where they cannot, "each of these holds the
memory of one of those" is a fact about the set. Processes that may not be read can only be further
holders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from vram.ledger.families import Family
from vram.ledger.sightings import Sightings
from vram.model.process import ProcessFacts

_ALWAYS = -1  # when somebody started whose start is not known: it may have been there before anybody


class Match(Struct, frozen=True):
    """The families that hold one dead pid's memory.

    ``certain``: each of them surely holds memory of a dead pid. ``sharing`` "one": there are several dead
    pids or several families, and which of these families holds this pid's memory is unknown.
    ``unheld``: how many of the dead pids with these same families are held by none of them.
    """

    families: tuple[Family, ...] = ()
    certain: bool = False
    sharing: Literal["one"] | None = None
    unheld: int = 0


def match(
    seen: Sightings, dead: Sequence[int], families: Sequence[Family], charged: Sequence[int]
) -> dict[int, Match]:
    """For every dead pid, who holds its memory. *charged* are the living processes that the list names."""
    possible = _PossibleSources(seen, charged)
    gone = frozenset(dead)
    proven = [at for at, family in enumerate(families) if _is_left_behind(seen, family, gone, possible)]
    linked = _links(seen, dead, families)
    elsewhere = {pid for pid in linked if not linked[pid] and unreadable_relatives(seen, pid)}
    paired = _pairs(linked, proven, elsewhere, families)
    taken = {at for found in paired.values() for at in found}
    result = {pid: Match(tuple(families[at] for at in found), bool(found)) for pid, found in paired.items()}
    left = [families[at] for at in proven if at not in taken]
    likely = [family for at, family in enumerate(families) if at not in taken]
    return result | _shared_out([pid for pid in dead if pid not in paired], left, likely)


def _links(seen: Sightings, dead: Iterable[int], families: Sequence[Family]) -> dict[int, list[int]]:
    """For every dead pid the places of those families of which it is a parent, group or session."""
    linked: dict[int, list[int]] = {pid: [] for pid in dead}
    for at, family in enumerate(families):
        known = (seen.processes[pid][1] for pid in family.pids if pid in seen.processes)
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

    Its children share its open file descriptions, so where the kernel tells those apart one owner has
    one family.
    """
    return sum(bool(family.descriptions) for family in families) <= 1


def _shared_out(open_pids: Sequence[int], proven: list[Family], likely: list[Family]) -> dict[int, Match]:
    """What is left of the dead, each with all that is left of the families."""
    families = tuple(proven or likely)
    # More families than owners: one of them has its files from somewhere else.
    told_apart = sum(bool(family.descriptions) for family in families)
    certain = bool(proven) and told_apart <= len(open_pids)
    ambiguous = bool(families) and (len(families) > 1 or len(open_pids) > 1)
    # Where descriptions are not told apart, each process is a family, and how many owners there were is open.
    alone = len(open_pids) - told_apart if certain and told_apart == len(families) else 0
    return dict.fromkeys(open_pids, Match(families, certain, "one" if ambiguous else None, alone))


def _is_left_behind(
    seen: Sightings, family: Family, dead: Collection[int], possible: _PossibleSources
) -> bool:
    """Whether the family's files surely come from a process that is gone.

    Its eldest were forked and never executed a program, which would have closed the files, and have
    lost their parent, or are of a dead pid's session or group. A program that is just making its own
    context has files and no charge too; but it was executed, or its parent lives.
    """
    if not dead or seen.lists_other_pids:
        return False
    members = frozenset(family.pids)
    for pid in family.pids:
        if pid not in seen.processes:
            return False
        ref, facts = seen.processes[pid]
        if facts.forked is False:
            return False
        if facts.parent in members:
            continue
        if not (_is_of(facts, dead) or _was_adopted(seen, pid, facts)):
            return False
        if possible.may_be_source_of(ref.started_at, facts):
            return False
    return True


def _was_adopted(seen: Sightings, pid: int, facts: ProcessFacts) -> bool:
    """Whether its own parent is dead: the kernel then gives it to an init, or to whoever asked for such.

    Sessions are inherited. One who is no leader of its session and whose parent is of another session
    was not forked by that parent.
    """
    if facts.parent is None or facts.parent <= 1:
        return True
    known = seen.processes.get(facts.parent)
    if known is None:
        return False
    parent = known[1]
    if parent.namespace_pids and parent.namespace_pids[-1] == 1:
        return True
    return bool(facts.session) and facts.session != pid and parent.session != facts.session


class _PossibleSources:
    """Living charged processes whose files we have not all read, and that may have given them to somebody.

    One whose files can be read shares no open file description with a family, or it would be its source.
    The earliest start of each user's, and of each session of theirs, decides.
    """

    def __init__(self, seen: Sightings, charged: Iterable[int]) -> None:
        self._seen = seen
        self._by_user: dict[int | None, int] = {}
        self._by_session: dict[tuple[int | None, int | None], int] = {}
        for pid in charged:
            if (pid in seen.files and pid not in seen.cut) or pid not in seen.processes:
                continue
            ref, facts = seen.processes[pid]
            start = _ALWAYS if ref.started_at is None else ref.started_at
            session = (facts.uid, facts.session)
            self._by_user[facts.uid] = min(start, self._by_user.get(facts.uid, start))
            self._by_session[session] = min(start, self._by_session.get(session, start))

    def may_be_source_of(self, started_at: int | None, facts: ProcessFacts) -> bool:
        """Whether one of them started before this process, as root or its user, and may be of its session."""
        leader = self._seen.processes.get(facts.session or 0)
        anywhere = leader is None or leader[1].is_dead
        starts = (
            self._by_user.get(uid) if anywhere else self._by_session.get((uid, facts.session))
            for uid in (0, facts.uid)
        )
        return any(start is not None and (started_at is None or start <= started_at) for start in starts)


def _is_of(facts: ProcessFacts, dead: Collection[int]) -> bool:
    return any(pid in dead for pid in (facts.parent, facts.group, facts.session))


def unreadable_relatives(seen: Sightings, dead: int) -> list[int]:
    """Living processes of a dead pid's session, group or children whose files we may not read."""
    if seen.made_relatives is None:
        seen.made_relatives = _relatives(seen)
    return [pid for pid in seen.made_relatives.get(dead, ()) if pid != dead]


def _relatives(seen: Sightings) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for pid, (_, facts) in sorted(seen.processes.items()):
        if facts.is_dead or facts.forked is False or pid in seen.files or seen.may_read_files_of(pid):
            continue
        for other in {facts.parent, facts.group, facts.session} - {None}:
            found.setdefault(other, []).append(pid)  # type: ignore[arg-type]  # None is left out
    return found
