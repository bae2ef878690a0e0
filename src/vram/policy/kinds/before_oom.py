"""before-oom: have memory released before a GPU is full, by those whose owners agreed, and warn who grows.

It ends nobody: that a program grows does not say that it is the one to go.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.processes import ProcessMemory, is_healthy, processes
from vram.model.forecast import Forecast, GrowingHold
from vram.model.ledger import GpuLedger
from vram.policy.policy import Policy, PolicyTarget, Relief
from vram.policy.subjects import PolicyKind, Situation, Subject
from vram.reclaim.device_state import available_bytes
from vram.units import duration, size

RELIEFS: tuple[Relief, ...] = ("trim", "release", "sleep")
"""What processes are asked for, least harm first. Only one that is idle is put to sleep."""


def _nearly_full(situation: Situation) -> Iterator[Subject]:
    policy, free = situation.policy, available_bytes(situation.ledger)
    for gpu in situation.ledger.gpus:
        mine = [each for each in situation.forecasts if each.gpu == gpu.index]
        soon = next((each for each in mine if each.full_in_s <= policy.full_in_s), None)
        left = free.get(gpu.index)
        if soon is not None or (left is not None and left < policy.min_free_bytes):
            yield _subject(situation, policy, gpu, soon, left)


def _subject(
    situation: Situation, policy: Policy, gpu: GpuLedger, soon: Forecast | None, left: int | None
) -> Subject:
    missing, parts = 1, []
    if soon is not None:
        missing = max(missing, int(soon.growth.bytes_per_s * policy.full_in_s) - soon.free_bytes)
        parts.append(f"full in {duration(soon.full_in_s)} at this rate, {size(soon.free_bytes)} free at most")
    elif left is not None:
        missing = max(missing, policy.min_free_bytes - left)
        parts.append(f"{size(left)} free")
    growing = soon.growing if soon is not None else ()
    agreed = [each for each in processes(situation.ledger).values() if _may_be_asked(each, gpu, situation)]
    parts += [] if agreed else ["no process there agreed to release memory"]
    return Subject(
        key=f"nearly full {gpu.uuid or f'GPU {gpu.index}'}",
        what=f"GPU {gpu.index} nearly full: {'; '.join(parts)}",
        gpus=(gpu.index,),
        nbytes=missing,
        # Who grows releases the most by it, mostly.
        holders=tuple(
            each.holder for each in sorted(agreed, key=lambda each: -each.charged_on((gpu.index,)))
        ),
        evidence=tuple(
            f"pid {each.pid or '?'} grows by {size(int(each.growth.bytes_per_s * 60))} a minute,"
            f" for {duration(each.growth.span_s)} at least"
            for each in growing
        ),
        told=tuple(target for each in growing if (target := _target(each)) is not None),
    )


def _may_be_asked(process: ProcessMemory, gpu: GpuLedger, situation: Situation) -> bool:
    holder = process.holder
    return (
        holder.started_at is not None
        and (process.pid, holder.started_at) in situation.agreed
        and bool(process.charged_on((gpu.index,)))
        and process.certain
        and process.protected is None
        and is_healthy(holder)
    )


def _target(growing: GrowingHold) -> PolicyTarget | None:
    if growing.pid is None or growing.started_at is None:
        return None
    return PolicyTarget(growing.pid, growing.started_at, growing.user, growing.command)


KIND = PolicyKind(
    name="before-oom",
    action="relieve",
    after_s=30.0,
    again_after_s=900.0,
    keys=("full-in", "min-free", "again-after", "notify"),
    match_keys=("gpus",),
    preview="trim, ask to release, or put to sleep,",
    find=_nearly_full,
)
