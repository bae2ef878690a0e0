"""The account of a GPU of AMD or Intel: clients' figures, fitted into what the device says.

The rules that keep a byte from being counted twice:
- a client counts once, whoever has it open (see drm_clients);
- ROCm's figure and the clients' figures of a process overlap: the larger of them counts;
- memory that clients share counts once for the GPU: the largest such figure, under its client.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vram.ledger.charges import gone, out_of_sight
from vram.ledger.drm_clients import ClientGroup, Keeping, claims, keeping
from vram.ledger.drm_kept import dmabuf_entries
from vram.ledger.drm_system import system_memory
from vram.ledger.holders import departed, holder, holders
from vram.ledger.reconcile import fit, overlapping, split
from vram.ledger.remainder import unexplained
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.gpu import MemoryFacts
from vram.model.kinds import Kind
from vram.model.ledger import Entry, GpuLedger, Note, OpenOnly, known_bytes
from vram.units import MIB, counted, size

# What the kernel's drivers use themselves is charged to no client: page tables, firmware, screen
# buffers. Nobody tells how much that is; beyond this it is called unexplained. Not measured.
_DRIVERS_OWN = 512 * MIB
_SURELY_OWN = 64 * MIB


def drm_ledger(seen: Sightings, gpu: GpuSighting) -> GpuLedger:
    """The balanced account of *gpu*."""
    found = claims(gpu.clients)
    kept = {claim.pids: keeping(seen, claim.pids) for claim in found}
    entries = [*_private(seen, gpu, found, kept), *_shared(seen, found, kept)]
    total, balanced, notes = _balanced(seen, gpu, found, entries)
    facts = gpu.facts
    return GpuLedger(
        index=gpu.index,
        uuid=facts.uuid if facts else None,
        name=facts.name if facts else "unknown GPU",
        total_bytes=total,
        entries=balanced,
        status=gpu.status if total is not None or gpu.status != "ok" else "unsupported",
        message=gpu.message or (None if total is not None else _untold(gpu)),
        code=gpu.code or (None if total is not None else "no-figures"),
        notes=notes,
        open_only=_open_only(seen, found, kept),
        facts=facts,
        memory=gpu.memory,
        vendor=facts.vendor if facts else "nvidia",
        system=system_memory(seen, gpu, found, kept),
    )


def _untold(gpu: GpuSighting) -> str:
    why = gpu.untold or f"{gpu.driver} does not tell how much memory the card has"
    return f"{why}; what its clients use is known"


def _balanced(
    seen: Sightings, gpu: GpuSighting, found: list[ClientGroup], entries: list[Entry]
) -> tuple[int | None, tuple[Entry, ...], tuple[Note, ...]]:
    if gpu.memory is not None:
        free, reserved, used = split(gpu.memory)
        fitted = fit(entries, used)
        rest = used - known_bytes(fitted)
        buffers = fit(dmabuf_entries(seen, gpu, found, rest), rest)
        rest -= known_bytes(buffers)
        held = (*fitted, *buffers, *_remainder(seen, gpu, found, rest))
        return gpu.memory.total, (*_by_size(held), *_frame(reserved, free)), _notes(gpu.memory, fitted)
    fitted = fit(entries, gpu.capacity) if gpu.capacity is not None else tuple(entries)
    if gpu.capacity is None:
        return None, _by_size(fitted), ()
    rest = gpu.capacity - known_bytes(fitted)
    word = f"{gpu.driver} tells how much memory the card has, and not how much of it is in use"
    other = [Entry(kind="unreported", nbytes=rest, evidence=(word,), confidence="unknown")] if rest else []
    return gpu.capacity, (*_by_size(fitted), *other), ()


def _frame(reserved: int, free: int) -> list[Entry]:
    """What nobody holds, by the driver's own figures."""
    kinds: tuple[tuple[Kind, int], ...] = (("reserved", reserved), ("free", free))
    return [
        Entry(kind=kind, nbytes=nbytes, evidence=("the driver's own figure",))
        for kind, nbytes in kinds
        if nbytes
    ]


def _by_size(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: -(entry.nbytes or 0)))


def _notes(memory: MemoryFacts, fitted: Sequence[Entry]) -> tuple[Note, ...]:
    notes = []
    overlap = overlapping(fitted)
    if overlap:
        text = f"the clients claim {size(overlap)} more than is in use: it is counted once here"
        notes.append(Note("overlap", text))
    if memory.used > memory.total:
        over = size(memory.used - memory.total)
        text = f"the driver says that {over} more is in use than there is; all of it is taken as used"
        notes.append(Note("over-full", text))
    return tuple(notes)


def _private(
    seen: Sightings, gpu: GpuSighting, found: list[ClientGroup], kept: dict[tuple[int, ...], Keeping]
) -> list[Entry]:
    """What each set of processes has for itself, with ROCm's figures where those are larger."""
    outside = not seen.host.initial_pid_namespace
    listed = {} if outside else {charge.process.pid: charge for charge in gpu.compute}
    told = _told(found)
    entries = []
    for claim in found:
        alone = listed.pop(claim.pids[0], None) if len(claim.pids) == 1 else None
        more = max(0, (alone.nbytes or 0) - told[claim.pids[0]]) if alone else 0
        if claim.private or more or not claim.is_told:
            entries.append(_entry(seen, gpu, claim, kept[claim.pids], alone, more))
    for pid, charge in listed.items():
        more = max(0, (charge.nbytes or 0) - told.get(pid, 0))
        if more or (charge.nbytes is None and pid not in told):
            entries.append(_listed_only(seen, charge, more or None))
    return entries + (_outside(gpu, sum(told.values())) if outside else [])


def _told(found: list[ClientGroup]) -> dict[int, int]:
    """What clients tell of each process, shared memory included."""
    told: dict[int, int] = {}
    for claim in found:
        nbytes = claim.private + claim.shared
        for pid in claim.pids:
            told[pid] = told.get(pid, 0) + nbytes
    return told


def _entry(
    seen: Sightings, gpu: GpuSighting, claim: ClientGroup, keep: Keeping, listed: Charge | None, more: int
) -> Entry:
    evidence = [_figure(gpu, claim, keep)]
    if listed and listed.nbytes:
        evidence.append(
            f"ROCm's list names pid {keep.first} with {size(listed.nbytes)}; both count the same memory, so"
            " the larger figure counts"
        )
    others = holders(seen, keep.others)
    if others:
        evidence.append(_sharing(keep))
    ref = seen.processes[keep.first][0] if keep.first in seen.processes else None
    opener = keep.departed
    told = claim.is_told or more
    return Entry(
        kind="orphaned" if opener is not None else "process",
        nbytes=claim.private + more if told else None,
        holder=holder(seen, ref, ("drm",)) if ref else departed(keep.first, ("drm",)),
        co_holders=others,
        sharing="all" if others else None,
        charged_pid=opener,
        charged_state=_state(seen, opener),
        evidence=tuple(evidence),
        confidence="unknown" if not told else "fact" if claim.certain and opener is None else "likely",
    )


def _figure(gpu: GpuSighting, claim: ClientGroup, keep: Keeping) -> str:
    what = counted(sum(client.descriptors for client in claim.clients), "descriptor")
    if not claim.is_told:
        return f"pid {keep.first} has {what} on it open, and {gpu.driver} does not say how much that uses"
    clients = counted(len(claim.clients), "client")
    return f"fdinfo of pid {keep.first}: {size(claim.private)} in {clients} ({what})"


def _sharing(keep: Keeping) -> str:
    others = _have(keep.others)
    if keep.departed is not None:
        return (
            f"{others} the same client, and none of them comes from another: whoever opened it,"
            f" {keep.departed} by their process group or session, is gone"
        )
    return f"{others} the same client open" + (", inherited by fork" if keep.inherited else "")


def _have(pids: Sequence[int]) -> str:
    return f"pid {', '.join(map(str, pids))} {'has' if len(pids) == 1 else 'have'}"


def _state(seen: Sightings, pid: int | None) -> str | None:
    known = seen.processes.get(pid) if pid is not None else None
    return known[1].state if known else None


def _listed_only(seen: Sightings, charge: Charge, nbytes: int | None) -> Entry:
    pid = charge.process.pid
    told = "an unknown amount" if charge.nbytes is None else size(charge.nbytes)
    evidence = [f"ROCm's list names pid {pid} with {told}"]
    if charge.nbytes and nbytes and nbytes < charge.nbytes:
        evidence.append(f"{size(charge.nbytes - nbytes)} of it are counted with the clients that it shares")
    confidence = "unknown" if charge.nbytes is None else "fact"
    if seen.alive(pid):
        return Entry(
            kind="process",
            nbytes=nbytes,
            holder=holder(seen, charge.process, charge.lists),
            evidence=tuple(evidence),
            confidence=confidence,  # type: ignore[arg-type]
        )
    reason, why = out_of_sight(seen, pid)
    evidence += [gone(seen, pid), why] if reason else [gone(seen, pid)]
    return Entry(
        kind="hidden" if reason else "orphaned",
        nbytes=nbytes,
        holder=departed(pid, charge.lists, visible=reason is None),
        charged_pid=pid,
        charged_state=_state(seen, pid),
        hidden_by=reason,
        evidence=tuple(evidence),
        confidence="likely" if reason else "unknown",
    )


def _outside(gpu: GpuSighting, told: int) -> list[Entry]:
    """ROCm lists the host's pids: inside a namespace they name nobody, and ours are among them."""
    nbytes = sum(charge.nbytes or 0 for charge in gpu.compute) - told
    if nbytes <= 0:
        return []
    listed = counted(len(gpu.compute), "process")
    words = f"ROCm lists {listed} by the host's pids, which mean others here"
    return [
        Entry(kind="hidden", nbytes=nbytes, evidence=(words,), hidden_by="namespace", confidence="likely")
    ]


def _shared(seen: Sightings, found: list[ClientGroup], kept: dict[tuple[int, ...], Keeping]) -> list[Entry]:
    """Shared buffers show in every client that has them; which are the same is not told."""
    sharing = sorted((claim for claim in found if claim.shared), key=lambda claim: -claim.shared)
    if not sharing:
        return []
    first, keep = sharing[0], kept[sharing[0].pids]
    others = {pid for claim in sharing[1:] for pid in claim.pids} | set(keep.others)
    words = [f"fdinfo of pid {keep.first}: {size(first.shared)} are shared with other clients"]
    if len(sharing) > 1:
        words.append(
            f"{counted(len(sharing) - 1, 'other set')} of clients share {size(sharing[1].shared)} at most;"
            " what is shared counts once"
        )
    ref = seen.processes[keep.first][0] if keep.first in seen.processes else None
    co_holders = holders(seen, sorted(others - {keep.first}))
    return [
        Entry(
            kind="process",
            nbytes=first.shared,
            holder=holder(seen, ref, ("drm",)) if ref else departed(keep.first, ("drm",)),
            co_holders=co_holders,
            sharing="all" if co_holders else None,
            evidence=tuple(words),
            confidence="likely",
            medium="shared",
        )
    ]


def _remainder(seen: Sightings, gpu: GpuSighting, found: list[ClientGroup], rest: int) -> list[Entry]:
    if not rest:
        return []
    told = "in use by the device's own figures, and in no client that can be read"
    entry = unexplained(seen, rest)
    why = entry.evidence[-1] if entry.kind == "hidden" else "the driver's own part of it is not told"
    entry = replace(entry, evidence=(told, why))
    if not (found or gpu.compute or gpu.compute_system) and entry.kind != "hidden":
        word = "no process has the GPU open: this is the driver's own"
        return [Entry(kind="reserved", nbytes=rest, evidence=(word,), confidence="likely")]
    if rest <= (_SURELY_OWN if entry.kind == "hidden" else _DRIVERS_OWN):
        word = "charged to no client, as the driver's own tables, firmware and screen buffers are"
        return [Entry(kind="overhead", nbytes=rest, evidence=(word,), confidence="likely")]
    untold = sorted({pid for claim in found if not claim.is_told for pid in claim.pids})
    if untold:
        word = f"{_have(untold)} the GPU open, and {gpu.driver} does not say how much that uses"
        return [replace(entry, evidence=(told, word))]
    return [entry]


def _open_only(
    seen: Sightings, found: list[ClientGroup], kept: dict[tuple[int, ...], Keeping]
) -> tuple[OpenOnly, ...]:
    """Whoever inherited a client of a living process, or has the GPU open and uses nothing of it."""
    sources: dict[int, int | None] = {}
    users: set[int] = set()
    for claim in found:
        keep = kept[claim.pids]
        if claim.private or claim.shared or claim.system or not claim.is_told:
            users.add(keep.first)
        else:
            sources.setdefault(keep.first, None)
        for pid in keep.others:
            if keep.inherited:
                sources[pid] = keep.first
    return tuple(
        OpenOnly(holder=holder(seen, seen.processes[pid][0]), inherited_from=source)
        for pid, source in sorted(sources.items())
        if pid in seen.processes and (source is not None or pid not in users)
    )
