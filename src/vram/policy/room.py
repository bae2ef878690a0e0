"""Room for those who wait: which idle processes to park, and when they come back."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vram.model.ledger import Ledger
from vram.policy.decision import ParkedByPolicy, Waiter
from vram.policy.subjects import Subject
from vram.reclaim.device_state import available_bytes
from vram.reclaim.selection import fewest
from vram.units import MIB

# What a context takes beside the bytes that the driver lists for it; the checkpoint worker asks for as much.
ROOM_MARGIN = 64 * MIB


class _Parkable(Struct, frozen=True):
    """An idle process, as seen from one GPU."""

    subject: Subject
    nbytes: int

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(each.pid for each in self.subject.holders)


def has_room(ledger: Ledger, waiter: Waiter) -> int | None:
    """The GPU on which *waiter* has its room, the one with most of it; None where there is none."""
    free = {
        gpu: nbytes
        for gpu, nbytes in available_bytes(ledger).items()
        if not waiter.gpus or gpu in waiter.gpus
    }
    best = max(free, key=lambda gpu: (free[gpu], -gpu), default=None)
    return best if best is not None and free[best] >= waiter.nbytes else None


def to_park(idle: Sequence[Subject], ledger: Ledger, waiters: Sequence[Waiter]) -> tuple[Subject, ...]:
    """Those of *idle* that must be parked so that the first who waits in vain has room; nobody where that
    would not be enough."""
    free = available_bytes(ledger)
    for waiter in waiters:
        if waiter.is_served or has_room(ledger, waiter) is not None:
            continue
        gpus = [gpu for gpu in free if not waiter.gpus or gpu in waiter.gpus]
        plans = [plan for gpu in gpus if (plan := _enough(idle, gpu, waiter.nbytes - free[gpu]))]
        if plans:
            return min(plans, key=lambda plan: (sum(each.nbytes for each in plan), len(plan)))
    return ()


def _enough(idle: Sequence[Subject], gpu: int, missing: int) -> tuple[Subject, ...]:
    options = [
        _Parkable(subject, subject.by_gpu[subject.gpus.index(gpu)]) for subject in idle if gpu in subject.gpus
    ]
    chosen = fewest(options, missing, harm=lambda each: 0)
    return tuple(each.subject for each in chosen) if sum(each.nbytes for each in chosen) >= missing else ()


def may_return(parked: ParkedByPolicy, ledger: Ledger) -> bool:
    """Whether there is room for it on all its GPUs."""
    free = available_bytes(ledger)
    needs = zip(parked.gpus, parked.nbytes, strict=True)
    return all(free.get(gpu, 0) >= nbytes + ROOM_MARGIN for gpu, nbytes in needs)


def is_waited_for(gpus: Sequence[int], waiters: Sequence[Waiter]) -> bool:
    """Whether somebody waits for room on one of *gpus*, or still uses what was made for them."""
    return any(not waiter.gpus or set(waiter.gpus) & set(gpus) for waiter in waiters)
