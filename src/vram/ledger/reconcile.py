"""The balance: claims are cut to what is there, and what nobody claims gets a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vram.model.gpu import MemoryFacts
from vram.model.ledger import Entry, known_bytes
from vram.units import size

_TRUST = {"unknown": 0, "likely": 1, "fact": 2}


def split(memory: MemoryFacts) -> tuple[int, int, int]:
    """Free, reserved and used bytes of a reading; they sum to its total whatever it says."""
    free = min(max(memory.free, 0), memory.total)
    reserved = min(max(memory.reserved or 0, 0), memory.total - free)
    return free, reserved, memory.total - free - reserved


def fit(claims: Sequence[Entry], room: int) -> tuple[Entry, ...]:
    """Cut *claims* until they sum to at most *room*.

    The driver can count the same bytes under two processes (memory shared by IPC, or
    figures read a moment apart). What is cut stays visible as ``claimed``. The least
    certain claim gives way first, then the largest: it is the one that can hold a share.
    """
    excess = known_bytes(claims) - room
    result = list(claims)
    sized = [(_TRUST[entry.confidence], -entry.nbytes, i) for i, entry in enumerate(result) if entry.nbytes]
    for _, negative, i in sorted(sized):
        if excess <= 0:
            break
        cut = min(excess, -negative)
        excess -= cut
        result[i] = _cut(result[i], -negative, cut)
    return tuple(result)


def overlapping(fitted: Sequence[Entry]) -> int:
    """How many bytes :func:`fit` has cut off *fitted*."""
    return sum(entry.claimed - (entry.nbytes or 0) for entry in fitted if entry.claimed is not None)


def _cut(entry: Entry, nbytes: int, cut: int) -> Entry:
    word = f"the driver reports {size(nbytes)}; {size(cut)} of it is already counted elsewhere"
    return replace(entry, nbytes=nbytes - cut, claimed=nbytes, evidence=(*entry.evidence, word))
