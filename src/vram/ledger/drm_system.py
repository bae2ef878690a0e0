"""The machine's own memory that a GPU uses: what an integrated one lives on, and others spill into."""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.drm_clients import ClientGroup, Keeping
from vram.ledger.holders import departed, holder, holders
from vram.ledger.reconcile import fit
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.drm import SystemMemoryFacts
from vram.model.ledger import Entry, SystemMemory, known_bytes
from vram.units import counted, size

_MACHINES = "which it takes from the machine's memory here"


def system_memory(
    seen: Sightings, gpu: GpuSighting, found: list[ClientGroup], kept: dict[tuple[int, ...], Keeping]
) -> SystemMemory | None:
    """Everybody's part; None where nothing is used and nothing is told."""
    entries = tuple(_entries(seen, gpu, found, kept))
    told = gpu.system or SystemMemoryFacts(None, None)
    if told.used is not None:
        entries = fit(entries, told.used)
        rest = told.used - known_bytes(entries)
        if rest:
            word = f"in use by the device's own figures, and in no client of {gpu.driver} that can be read"
            entries += (Entry(kind="unattributed", nbytes=rest, evidence=(word,), confidence="unknown"),)
    if not entries and not told.used:
        return None
    ordered = tuple(sorted(entries, key=lambda entry: -(entry.nbytes or 0)))
    return SystemMemory(total_bytes=told.total, used_bytes=told.used, entries=ordered)


def _entries(
    seen: Sightings, gpu: GpuSighting, found: list[ClientGroup], kept: dict[tuple[int, ...], Keeping]
) -> Iterator[Entry]:
    """What clients tell, with ROCm's figures where it takes this memory and tells more."""
    # ROCm lists the host's pids: inside of a namespace they name nobody, or somebody else.
    listed = {c.process.pid: c for c in gpu.compute_system} if seen.host.initial_pid_namespace else {}
    told: dict[int, int] = {}
    for claim in found:
        nbytes = claim.system
        for pid in claim.pids:
            told[pid] = told.get(pid, 0) + nbytes
    for claim in found:
        rocm = listed.pop(claim.pids[0], None) if len(claim.pids) == 1 else None
        more = max(0, (rocm.nbytes or 0) - told[claim.pids[0]]) if rocm else 0
        if claim.system or more:
            yield _entry(seen, claim, kept[claim.pids], rocm, more)
    for pid, charge in listed.items():
        more = max(0, (charge.nbytes or 0) - told.get(pid, 0))
        if more and seen.alive(pid):
            yield _listed(seen, charge, more)


def _listed(seen: Sightings, charge: Charge, nbytes: int) -> Entry:
    words = f"ROCm's list names pid {charge.process.pid} with {size(charge.nbytes or 0)}"
    who = holder(seen, charge.process, charge.lists)
    return Entry(kind="process", nbytes=nbytes, holder=who, evidence=(f"{words}, {_MACHINES}",))


def _entry(seen: Sightings, claim: ClientGroup, keep: Keeping, rocm: Charge | None, more: int) -> Entry:
    clients = counted(len(claim.clients), "client")
    words = [f"fdinfo of pid {keep.first}: {size(claim.system)} of system memory in {clients}"]
    if rocm and rocm.nbytes:
        words.append(
            f"ROCm's list names pid {keep.first} with {size(rocm.nbytes)}, {_MACHINES}; both count the same"
            " memory, so the larger figure counts"
        )
    ref = seen.processes[keep.first][0] if keep.first in seen.processes else None
    co_holders = holders(seen, keep.others)
    return Entry(
        kind="process",
        nbytes=claim.system + more,
        holder=holder(seen, ref, ("drm",)) if ref else departed(keep.first, ("drm",)),
        co_holders=co_holders,
        sharing="all" if co_holders else None,
        evidence=tuple(words),
        confidence="fact" if claim.certain else "likely",
    )
