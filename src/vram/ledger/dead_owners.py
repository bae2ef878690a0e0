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

from collections.abc import Iterable, Sequence

from msgspec import Struct

from vram.ledger.families import Family
from vram.ledger.sightings import Sightings
from vram.model.process import ProcessFacts


class Match(Struct, frozen=True):
    """The families that hold one dead pid's memory.

    ``certain``: each of them surely holds memory of a dead pid. ``either``: there are several dead
    pids or several families, and which of these families holds this pid's memory is unknown.
    ``held_elsewhere``: how many of the dead pids with these same families nobody among them can hold.
    """

    families: tuple[Family, ...] = ()
    certain: bool = False
    either: bool = False
    held_elsewhere: int = 0


def match(
    seen: Sightings, dead: Sequence[int], families: Sequence[Family], charged: Sequence[int]
) -> dict[int, Match]:
    """For every dead pid, who holds its memory. *charged* are the living processes that the list names."""
    proven = [family for family in families if _is_left_behind(seen, family, dead, charged)]
    linked = {pid: [family for family in families if is_linked(seen, family.pids, pid)] for pid in dead}
    elsewhere = {pid for pid in dead if not linked[pid] and unreadable_relatives(seen, pid)}
    paired = _pairs(linked, proven, elsewhere)
    open_pids = [pid for pid in dead if pid not in paired]
    taken = [family for found in paired.values() for family in found]
    left = [family for family in proven if family not in taken]
    likely = [family for family in families if family not in taken]
    result = {pid: Match(tuple(found), bool(found)) for pid, found in paired.items()}
    return result | _shared_out(open_pids, left, likely)


def _pairs(
    linked: dict[int, list[Family]], proven: Sequence[Family], elsewhere: Iterable[int]
) -> dict[int, list[Family]]:
    """Dead pids whose holders nobody else can claim: by session, group or parent, each for each.

    A session or group names its leader, and another one that died in it may be the owner instead. So
    these links count only where every dead pid has one of its own (*elsewhere*: to processes that may
    not be read), or where it is the only dead pid.
    """
    if len(linked) == 1:
        ((pid, found),) = linked.items()
        own = [family for family in found if family in proven] or list(proven)
        return {pid: own} if own and _may_be_one_owners(own) else {}
    claims = [family for found in linked.values() for family in found]
    clear = {
        pid: found
        for pid, found in linked.items()
        if found
        and all(family in proven and claims.count(family) == 1 for family in found)
        and _may_be_one_owners(found)
    }
    everybody_has_one = len(clear) + len(set(elsewhere)) == len(linked)
    if not everybody_has_one or any(family not in claims for family in proven):
        return {}
    return clear | {pid: [] for pid in elsewhere}


def _may_be_one_owners(families: Sequence[Family]) -> bool:
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
    either = bool(families) and (len(families) > 1 or len(open_pids) > 1)
    # Where descriptions are not told apart, each process is a family, and how many owners there were is open.
    alone = len(open_pids) - told_apart if certain and told_apart == len(families) else 0
    return {pid: Match(families, certain, either, alone) for pid in open_pids}


def _is_left_behind(seen: Sightings, family: Family, dead: Sequence[int], charged: Sequence[int]) -> bool:
    """Whether the family's files surely come from a process that is gone.

    Its eldest were forked and never executed a program, which would have closed the files, and have
    lost their parent, or are of a dead pid's session or group. A program that is just making its own
    context has files and no charge too; but it was executed, or its parent lives.
    """
    if not dead or seen.lists_other_pids:
        return False
    for pid in family.pids:
        if pid not in seen.processes:
            return False
        ref, facts = seen.processes[pid]
        if facts.forked is False:
            return False
        if facts.parent in family.pids:
            continue
        if not (_is_of(facts, dead) or _was_adopted(seen, pid, facts)):
            return False
        if any(_may_be_source(seen, other, ref.started_at, facts) for other in charged):
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


def _may_be_source(seen: Sightings, other: int, started_at: int | None, facts: ProcessFacts) -> bool:
    """Whether a living charged process, whose files we may not read, may have given its files to this one.

    One whose files can be read shares no open file description with it, or it would be its source.
    """
    known = seen.processes.get(other)
    if other in seen.files or known is None:
        return False
    ref, its = known
    if ref.started_at is not None and started_at is not None and ref.started_at > started_at:
        return False
    if its.uid not in (0, facts.uid):
        return False
    leader = seen.processes.get(facts.session or 0)
    return its.session == facts.session or leader is None or leader[1].is_dead


def is_linked(seen: Sightings, pids: Iterable[int], dead: int) -> bool:
    """Whether one of *pids* has *dead* for its parent, or is of its process group or session."""
    return any(_is_of(seen.processes[pid][1], (dead,)) for pid in pids if pid in seen.processes)


def _is_of(facts: ProcessFacts, dead: Sequence[int]) -> bool:
    return any(pid in dead for pid in (facts.parent, facts.group, facts.session))


def unreadable_relatives(seen: Sightings, dead: int) -> list[int]:
    """Living processes of a dead pid's session, group or children whose files we may not read."""
    return sorted(
        pid
        for pid, (_, facts) in seen.processes.items()
        if pid != dead
        and not facts.is_dead
        and facts.forked is not False
        and pid not in seen.files
        and not seen.may_read_files_of(pid)
        and _is_of(facts, (dead,))
    )
