"""Managed memory on the device: used, and in no process list.

A process shows how much of it it has (it maps nvidia-uvm for it), not where it lies: pages
move to a device when that touches them. So it is the likely owner of bytes that are in use
and charged to nobody, up to what it has mapped.
"""

from __future__ import annotations

from vram.ledger.holders import holder
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry
from vram.units import size

# Managed memory explains bytes by itself when it is this close to them, as a part of them.
_CLOSE = 16


def explains(seen: Sightings, gpu: GpuSighting, room: int) -> bool:
    """Whether managed memory alone accounts for *room*, bytes that nobody is charged for."""
    total = sum(_managed(seen, gpu).values())
    return total > 0 and abs(total - room) <= total // _CLOSE


def managed_entries(seen: Sightings, gpu: GpuSighting, room: int) -> list[Entry]:
    """Entries for managed memory, largest first, as far as *room* goes."""
    entries = []
    charges = {charge.process.pid: charge for charge in reversed(gpu.charges)}
    for pid, mapped in sorted(_managed(seen, gpu).items(), key=lambda each: (-each[1], each[0])):
        nbytes = min(mapped, room)
        if nbytes > 0:
            room -= nbytes
            entries.append(_entry(seen, charges[pid], nbytes, mapped))
    return entries


def _managed(seen: Sightings, gpu: GpuSighting) -> dict[int, int]:
    """Managed bytes of every process that has a context on the GPU."""
    pids = {charge.process.pid for charge in gpu.charges if seen.alive(charge.process.pid)}
    found = {pid: seen.files[pid].managed_bytes or 0 for pid in pids if pid in seen.files}
    return {pid: nbytes for pid, nbytes in found.items() if nbytes}


def _entry(seen: Sightings, charge: Charge, nbytes: int, mapped: int) -> Entry:
    return Entry(
        kind="process",
        nbytes=nbytes,
        holder=holder(seen, charge.process, charge.lists),
        evidence=(
            f"pid {charge.process.pid} has {size(mapped)} of managed memory mapped; no process list counts"
            " managed memory",
            "these bytes are in use and charged to nobody",
        ),
        confidence="likely",
        medium="managed",
    )
