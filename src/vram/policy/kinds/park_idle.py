"""park-idle: park idle processes whose owners allow it, while others wait for their room."""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.processes import processes
from vram.policy.subjects import (
    PEOPLE,
    PolicyKind,
    Situation,
    Subject,
    evidence_of,
    holders_key,
    may_be_moved,
)
from vram.units import size


def _idle(situation: Situation) -> Iterator[Subject]:
    for process in processes(situation.ledger).values():
        holder = process.holder
        is_allowed = (process.pid, holder.started_at) in situation.allowed
        if not is_allowed or not process.idle or not may_be_moved(process, situation.ledger):
            continue
        gpus = tuple(sorted(process.charged_by_gpu))
        yield Subject(
            key=holders_key("idle", (holder,)),
            what=f"{size(process.charged_bytes)} of idle pid {process.pid}",
            gpus=gpus,
            nbytes=process.charged_bytes,
            holders=(holder,),
            evidence=(*evidence_of(process.charged), "it sleeps, and its GPUs report no work"),
            by_gpu=tuple(process.charged_by_gpu[gpu] or 0 for gpu in gpus),
        )


KIND = PolicyKind(
    name="park-idle",
    action="park",
    after_s=900.0,
    keys=("unpark-after",),
    match_keys=PEOPLE,
    preview="park, once others wait for room,",
    find=_idle,
    consent="park",
    waits_for_room=True,
)
