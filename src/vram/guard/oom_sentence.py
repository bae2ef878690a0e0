"""One sentence of cause and remedy for an out-of-memory: judged from figures alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from vram.guard.footprint import Footprint
from vram.model.kinds import KINDS
from vram.model.leak import Kept
from vram.units import size

BEGINNING = "the GPU is out of memory"


class Situation(NamedTuple):
    """What was measured at the moment. ``ledger`` is the JSON of `vram why`, or None."""

    pid: int
    requested: int | None
    footprint: Footprint
    frameworks: tuple[dict[str, Any], ...]
    ledger: dict[str, Any] | None
    largest: tuple[Kept, ...]


def sentence(now: Situation) -> str:
    """Cause and remedy, the likeliest first."""
    asked = f"asked for {size(now.requested)}" if now.requested else "asked for more than was left"
    return f"{BEGINNING} ({asked}): {_cause(now)}"


def _cause(now: Situation) -> str:
    held, wanted = now.footprint, now.requested or 1
    others = _others(now)
    theirs = sum(nbytes for nbytes, _ in others)
    if theirs > held.total and theirs >= wanted:
        nbytes, who = max(others)
        return (
            f"other holders have {size(theirs)} of it, {who} alone {size(nbytes)}; "
            "`vram why` says who they are and how to get it back"
        )
    if held.cached >= wanted or held.cached > held.total // 3:
        return (
            f"{size(held.cached)} lie unused in this process's own caches; "
            "vram.flush() gives them back, and vram.retry_on_oom does so before it tries again"
        )
    if held.fragmented >= wanted:
        return (
            f"{size(held.fragmented)} are unused but in pieces between live arrays; PyTorch defragments with "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return _own(now)


def _own(now: Situation) -> str:
    held = now.footprint
    used = sum(held.in_use.values()) + max(0, held.outside)
    if now.largest:
        most = now.largest[0]
        keeper = f", kept by {most.keeper}" if most.keeper else ""
        return (
            f"this process itself uses {size(used)}; the largest array is {most.what}, {size(most.nbytes)}"
            f"{keeper}; let go of it, or ask for less (vram.retry_on_oom)"
        )
    if held.outside > sum(held.in_use.values()):
        return (
            f"this process has {size(held.outside)} outside every framework, its context included; look for "
            "raw allocations that nobody frees (vram.scope finds them), or ask for less"
        )
    amount = size(used) if used else "what there is"
    return f"this process itself uses {amount}; ask for less (vram.retry_on_oom shrinks by itself)"


def _others(now: Situation) -> list[tuple[int, str]]:
    """Bytes of everybody else, on the GPUs that this process uses."""
    found = []
    for gpu in (now.ledger or {}).get("gpus", ()):
        mine = any((entry.get("holder") or {}).get("pid") == now.pid for entry in gpu["entries"])
        for entry in gpu["entries"] if mine or len(now.ledger["gpus"]) == 1 else ():  # type: ignore[index]
            pid = (entry.get("holder") or {}).get("pid")
            if KINDS[entry["kind"]].held and entry["nbytes"] and pid != now.pid:
                found.append((entry["nbytes"], f"pid {pid}" if pid else f"memory that is {entry['kind']}"))
    return found
