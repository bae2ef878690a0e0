"""What proves that a process is left behind: that it holds the memory of a dead one, and no living one's.

A fact ends processes: `vram free`, policies and the epilog act on it without being told a name. So each fact
below is one that no other user can bring about for somebody else's healthy process; docs/decisions/19 has the
table of what can be forged, and of what then follows. Whatever is not proven is "likely", and "likely" is
never ended without a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vram.ledger.indexed_survey import IndexedSurvey
from vram.model.ledger import Proof
from vram.model.process import ProcessFacts

_ALWAYS = -1  # when somebody started whose start is not known: it may have been there before anybody


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
    files and no charge too; but it was executed, or its parent lives, or it is charged seconds later: who is
    not of a dead pid's session, group or children either is ended only when it is seen twice.
    """
    if not dead or survey.lists_other_pids or survey.unfinished:
        return None
    proof: Proof = "relative"
    for pid in family:
        if pid not in survey.processes:
            return None
        ref, facts = survey.processes[pid]
        eldest = _eldest(survey, pid, holders)
        if eldest is None or not _has_lost_its_parent(survey, eldest, dead):
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
    """Whether its own parent is dead: the kernel then gives it to an init, or to whoever asked for such.

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


class PossibleSources:
    """Living charged processes that may have given their files to somebody who lost its parent.

    Where all open file descriptions of both are numbered, one that shares none with a family is not its
    source. Else it may be: not numbered means "may share". The earliest start of each user's, and of each
    session of theirs, decides then.
    """

    def __init__(self, survey: IndexedSurvey, charged: Iterable[int], minor: int | None) -> None:
        self._seen = survey
        self._unknown, self._all = _Earliest(), _Earliest()
        for pid in charged:
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
