"""park-idle: park idle processes whose owners allow it, while others wait for their room."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vram.ledger.processes import ProcessMemory, is_healthy, processes
from vram.policy.subjects import PEOPLE, PolicyKind, Situation, Subject, evidence_of, holders_key
from vram.units import size


def _idle(situation: Situation) -> Iterator[Subject]:
    ledger = situation.ledger
    whole = (gpu for gpu in ledger.gpus if gpu.driver == "nvidia" and not gpu.instances)
    on_nvidia = {gpu.index for gpu in whole if gpu.has_own_memory}
    for process in processes(ledger).values():
        holder = process.holder
        if (process.pid, holder.started_at) not in situation.allowed or not _may_be_parked(
            process, on_nvidia
        ):
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


def _may_be_parked(process: ProcessMemory, on_nvidia: Collection[int]) -> bool:
    alone = not process.co_holders and not process.uses_mps and process.certain
    known = all(process.charged_by_gpu.values()) and set(process.gpus) <= set(on_nvidia)
    return (
        process.idle
        and bool(process.charged)
        and alone
        and known
        and process.protected is None
        and is_healthy(process.holder)
    )


KIND = PolicyKind(
    name="park-idle",
    action="park",
    after_s=900.0,
    keys=("unpark-after",),
    match_keys=PEOPLE,
    preview="park, once others wait for room,",
    find=_idle,
    waits_for_room=True,
)
