"""sleep-idle: put programs to sleep that have been idle for long, and whose owners allow it.

What wakes them is the business of their owner's waker. After a wake the policy waits as long again.
"""

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


def _allowed(situation: Situation) -> Iterator[Subject]:
    """Every process that may be put to sleep, idle or not. One that sleeps has nothing on a GPU."""
    for process in processes(situation.ledger).values():
        holder = process.holder
        is_allowed = (process.pid, holder.started_at) in situation.allowed
        is_own = process.pid in situation.own_pids
        if not is_allowed or is_own or not may_be_moved(process, situation.ledger):
            continue
        yield Subject(
            key=holders_key("sleeps when idle", (holder,)),
            what=f"{size(process.charged_bytes)} of pid {process.pid}",
            gpus=tuple(sorted(process.charged_by_gpu)),
            nbytes=process.charged_bytes,
            holders=(holder,),
            evidence=evidence_of(process.charged),
            works=not process.idle,
        )


KIND = PolicyKind(
    name="sleep-idle",
    action="sleep",
    after_s=60.0,
    keys=("idle",),
    match_keys=PEOPLE,
    preview="put to sleep, when it has been idle for long enough,",
    find=_allowed,
    consent="sleep",
    only_idle=True,
)
