"""The machine's own memory that a GPU uses: what an integrated one lives on, and others spill into."""

from __future__ import annotations

from vram.ledger.drm_clients import Claim, Keeping
from vram.ledger.holders import departed, holder, holders
from vram.ledger.reconcile import fit
from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.drm import SystemMemoryFacts
from vram.model.ledger import Entry, SystemMemory
from vram.units import counted, size


def system_memory(
    seen: Sightings, gpu: GpuSighting, found: list[Claim], kept: dict[tuple[int, ...], Keeping]
) -> SystemMemory | None:
    """Everybody's part; None where nothing is used and nothing is told."""
    entries = tuple(_entry(seen, claim, kept[claim.pids]) for claim in found if claim.system)
    told = gpu.system or SystemMemoryFacts(None, None)
    if told.used is not None:
        entries = fit(entries, told.used)
        rest = told.used - sum(entry.nbytes for entry in entries)
        if rest:
            word = f"in use by the device's own figures, and in no client of {gpu.driver} that can be read"
            entries += (Entry(kind="unattributed", nbytes=rest, evidence=(word,), confidence="unknown"),)
    if not entries and not told.used:
        return None
    ordered = tuple(sorted(entries, key=lambda entry: -entry.nbytes))
    return SystemMemory(total_bytes=told.total, used_bytes=told.used, entries=ordered)


def _entry(seen: Sightings, claim: Claim, keep: Keeping) -> Entry:
    clients = counted(len(claim.clients), "client")
    ref = seen.processes[keep.first][0] if keep.first in seen.processes else None
    return Entry(
        kind="process",
        nbytes=claim.system,
        holder=holder(seen, ref, ("drm",)) if ref else departed(keep.first, ("drm",)),
        sharers=holders(seen, keep.others),
        evidence=(f"fdinfo of pid {keep.first}: {size(claim.system)} of system memory in {clients}",),
        confidence="fact" if claim.certain else "likely",
    )
