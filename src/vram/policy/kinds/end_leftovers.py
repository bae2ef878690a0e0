"""end-leftovers: end the holders of dead owners' memory, as `vram free` does."""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.processes import processes
from vram.model.ledger import Holder
from vram.policy.subjects import (
    PEOPLE,
    GhostNames,
    PolicyKind,
    Situation,
    Subject,
    evidence_of,
    holders_key,
    pids_of,
)
from vram.reclaim.candidates import Leftover, leftovers
from vram.units import size


def _proven(situation: Situation) -> Iterator[Subject]:
    """What `vram free` would end by itself, and nothing else."""
    ledger = situation.ledger
    for leftover in leftovers(ledger, processes(ledger)):
        holders = tuple(process.holder for process in leftover.processes)
        if ledger.host.uid != 0 and any(each.user != ledger.host.user for each in holders):
            continue
        if all(each.started_at is not None for each in holders):
            yield _of_leftover(leftover, holders, situation.names)


def _of_leftover(leftover: Leftover, holders: tuple[Holder, ...], names: GhostNames) -> Subject:
    entries = [entry for _, entry in leftover.entries]
    return Subject(
        key=names.holders(entries) or holders_key("leftover", holders),
        what=f"{size(leftover.nbytes())} of dead owners, held by pid {pids_of(holders)}",
        gpus=leftover.gpus,
        nbytes=leftover.nbytes(),
        code=leftover.code,
        holders=holders,
        evidence=evidence_of(entries),
    )


KIND = PolicyKind(
    name="end-leftovers",
    action="end",
    after_s=900.0,
    keys=("grace",),
    match_keys=(*PEOPLE, "codes"),
    preview="end",
    find=_proven,
)
