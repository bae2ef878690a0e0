"""warn-owner: tell people that a process of theirs holds memory of a dead one."""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis.leftover import ghost_code
from vram.ledger.holds import find_holds
from vram.policy.subjects import PEOPLE, PolicyKind, Situation, Subject, evidence_of, pids_of
from vram.units import size


def _held_by_somebody(situation: Situation) -> Iterator[Subject]:
    """All memory of dead owners that a visible process holds, also where that is not certain."""
    for hold in find_holds(situation.ledger):
        holders = tuple(each for each in hold.holders if each.started_at is not None)
        if hold.what != "ghost" or not holders or not hold.nbytes:
            continue
        dead = "" if hold.dead_pid is None else f" (dead pid {hold.dead_pid})"
        yield Subject(
            key=situation.names.ghost(hold.entries),
            what=f"{size(hold.nbytes)} of a dead owner{dead}, held by pid {pids_of(holders)}",
            gpus=hold.gpus,
            nbytes=hold.nbytes,
            code=ghost_code(hold.entries[0]),
            holders=holders,
            evidence=evidence_of(hold.entries),
        )


KIND = PolicyKind(
    name="warn-owner",
    action="warn",
    after_s=300.0,
    keys=("again-after", "notify"),
    match_keys=(*PEOPLE, "codes"),
    preview="warn the owners of",
    find=_held_by_somebody,
)
