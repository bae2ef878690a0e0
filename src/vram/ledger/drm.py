"""The account of a GPU of AMD or Intel: clients' figures, fitted into what the device says.

What keeps a byte from being counted twice:
- a client counts once, whoever has it open (see drm_clients);
- ROCm's figure and the clients' figures of a process overlap: the larger of them counts;
- memory that clients share counts once for the GPU: the largest such figure, under its client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from vram.ledger.charges import gone, out_of_sight
from vram.ledger.drm_clients import ClientGroup, ClientHolders, client_groups, holding
from vram.ledger.holders import departed, holder, holders
from vram.ledger.indexed_survey import (
    Charge,
    ExportedDescriptor,
    GpuObservations,
    IndexedSurvey,
    by_allocation,
)
from vram.ledger.reconcile import fit, overlapping, split
from vram.ledger.remainder import unexplained
from vram.model.files import SystemMemoryFacts
from vram.model.gpu import MemoryFacts
from vram.model.kinds import Kind
from vram.model.ledger import Entry, GpuLedger, Note, OpenOnly, SystemMemory, known_bytes
from vram.units import MIB, counted, size

# What the kernel's drivers use themselves is charged to no client: page tables, firmware, screen
# buffers. Nothing reports how much that is; beyond this it is called unexplained. Not measured.
_DRIVERS_OWN = 512 * MIB
_SURELY_OWN = 64 * MIB


def drm_ledger(survey: IndexedSurvey, gpu: GpuObservations) -> GpuLedger:
    """The balanced account of *gpu*."""
    found = client_groups(gpu.clients)
    client_holders = {group.pids: holding(survey, group.pids) for group in found}
    entries = [*_private(survey, gpu, found, client_holders), *_shared(survey, found, client_holders)]
    total, balanced, notes = _balanced(survey, gpu, found, entries)
    facts = gpu.facts
    return GpuLedger(
        index=gpu.index,
        uuid=facts.uuid if facts else None,
        name=facts.name if facts else "unknown GPU",
        total_bytes=total,
        entries=balanced,
        status=gpu.status if total is not None or gpu.status != "ok" else "unsupported",
        message=gpu.message or (None if total is not None else _no_size(gpu)),
        code=gpu.code or (None if total is not None else "no-figures"),
        notes=notes,
        open_only=_open_only(survey, found, client_holders),
        facts=facts,
        memory=gpu.memory,
        vendor=facts.vendor if facts else "nvidia",
        system=system_memory(survey, gpu, found, client_holders),
    )


def _no_size(gpu: GpuObservations) -> str:
    why = gpu.size_unknown or f"{gpu.driver} does not report how much memory the card has"
    return f"{why}; what its clients use is known"


def _balanced(
    survey: IndexedSurvey, gpu: GpuObservations, found: list[ClientGroup], entries: list[Entry]
) -> tuple[int | None, tuple[Entry, ...], tuple[Note, ...]]:
    if gpu.memory is not None:
        free, reserved, used = split(gpu.memory)
        fitted = fit(entries, used)
        rest = used - known_bytes(fitted)
        buffers = fit(dmabuf_entries(survey, gpu, found, rest), rest)
        rest -= known_bytes(buffers)
        held = (*fitted, *buffers, *_remainder(survey, gpu, found, rest))
        return gpu.memory.total, (*_by_size(held), *_frame(reserved, free)), _notes(gpu.memory, fitted)
    fitted = fit(entries, gpu.capacity) if gpu.capacity is not None else tuple(entries)
    if gpu.capacity is None:
        return None, _by_size(fitted), ()
    rest = gpu.capacity - known_bytes(fitted)
    word = f"{gpu.driver} reports how much memory the card has, but not how much is in use"
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
        text = f"the clients add up to {size(overlap)} more than is in use; it is counted once here"
        notes.append(Note("overlap", text))
    if memory.used > memory.total:
        over = size(memory.used - memory.total)
        text = f"the driver reports {over} more in use than the card has; all of it is counted as used"
        notes.append(Note("over-full", text))
    return tuple(notes)


def _private(
    survey: IndexedSurvey,
    gpu: GpuObservations,
    found: list[ClientGroup],
    client_holders: dict[tuple[int, ...], ClientHolders],
) -> list[Entry]:
    """What each set of processes has for itself, with ROCm's figures where those are larger."""
    outside = not survey.host.initial_pid_namespace
    listed = {} if outside else {charge.process.pid: charge for charge in gpu.compute}
    reported = _told(found)
    entries = []
    for group in found:
        alone = listed.pop(group.pids[0], None) if len(group.pids) == 1 else None
        more = max(0, (alone.nbytes or 0) - reported[group.pids[0]]) if alone else 0
        if group.private or more or not group.has_figure:
            entries.append(_private_entry(survey, gpu, group, client_holders[group.pids], alone, more))
    for pid, charge in listed.items():
        more = max(0, (charge.nbytes or 0) - reported.get(pid, 0))
        if more or (charge.nbytes is None and pid not in reported):
            entries.append(_listed_only(survey, charge, more or None))
    return entries + (_outside(gpu, sum(reported.values())) if outside else [])


def _told(found: list[ClientGroup]) -> dict[int, int]:
    """What clients report of each process, shared memory included."""
    reported: dict[int, int] = {}
    for group in found:
        nbytes = group.private + group.shared
        for pid in group.pids:
            reported[pid] = reported.get(pid, 0) + nbytes
    return reported


def _private_entry(
    survey: IndexedSurvey,
    gpu: GpuObservations,
    group: ClientGroup,
    who: ClientHolders,
    listed: Charge | None,
    more: int,
) -> Entry:
    evidence = [_figure(gpu, group, who)]
    if listed and listed.nbytes:
        evidence.append(
            f"ROCm's list names pid {who.first} with {size(listed.nbytes)}; both count the same memory,"
            " so the larger figure is used"
        )
    others = holders(survey, who.others)
    if others:
        evidence.append(_sharing(who))
    ref = survey.processes[who.first][0] if who.first in survey.processes else None
    gone_owner = who.departed
    reported = group.has_figure or more
    return Entry(
        kind="orphaned" if gone_owner is not None else "process",
        nbytes=group.private + more if reported else None,
        holder=holder(survey, ref, ("drm",)) if ref else departed(who.first, ("drm",)),
        co_holders=others,
        sharing="all" if others else None,
        charged_pid=gone_owner,
        charged_state=_state(survey, gone_owner),
        evidence=tuple(evidence),
        confidence="unknown"
        if not reported
        else "fact"
        if group.certain and gone_owner is None
        else "likely",
    )


def _figure(gpu: GpuObservations, group: ClientGroup, who: ClientHolders) -> str:
    what = counted(sum(client.descriptors for client in group.clients), "descriptor")
    if not group.has_figure:
        return (
            f"pid {who.first} has {what} open on the GPU, and {gpu.driver} does not report how much that uses"
        )
    clients = counted(len(group.clients), "client")
    return f"fdinfo of pid {who.first}: {size(group.private)} in {clients} ({what})"


def _sharing(who: ClientHolders) -> str:
    others = _have(who.others)
    if who.departed is not None:
        return (
            f"{others} the same client, and none is the parent of another: the process that"
            f" opened it (pid {who.departed}, by their process group or session) is dead"
        )
    return f"{others} the same client open" + (", inherited by fork" if who.inherited else "")


def _have(pids: Sequence[int]) -> str:
    return f"pid {', '.join(map(str, pids))} {'has' if len(pids) == 1 else 'have'}"


def _state(survey: IndexedSurvey, pid: int | None) -> str | None:
    known = survey.processes.get(pid) if pid is not None else None
    return known[1].state if known else None


def _listed_only(survey: IndexedSurvey, charge: Charge, nbytes: int | None) -> Entry:
    pid = charge.process.pid
    reported = "an unknown amount" if charge.nbytes is None else size(charge.nbytes)
    evidence = [f"ROCm's list names pid {pid} with {reported}"]
    if charge.nbytes and nbytes and nbytes < charge.nbytes:
        evidence.append(f"{size(charge.nbytes - nbytes)} of it is counted with the clients that it shares")
    confidence = "unknown" if charge.nbytes is None else "fact"
    if survey.alive(pid):
        return Entry(
            kind="process",
            nbytes=nbytes,
            holder=holder(survey, charge.process, charge.lists),
            evidence=tuple(evidence),
            confidence=confidence,  # type: ignore[arg-type]
        )
    reason, why = out_of_sight(survey, pid)
    evidence += [gone(survey, pid), why] if reason else [gone(survey, pid)]
    return Entry(
        kind="hidden" if reason else "orphaned",
        nbytes=nbytes,
        holder=departed(pid, charge.lists, visible=reason is None),
        charged_pid=pid,
        charged_state=_state(survey, pid),
        hidden_by=reason,
        evidence=tuple(evidence),
        confidence="likely" if reason else "unknown",
    )


def _outside(gpu: GpuObservations, reported: int) -> list[Entry]:
    """ROCm lists the host's pids: inside a namespace they name nobody, and ours are among them."""
    nbytes = sum(charge.nbytes or 0 for charge in gpu.compute) - reported
    if nbytes <= 0:
        return []
    listed = counted(len(gpu.compute), "process")
    words = f"ROCm lists {listed} by host pids, which mean other processes here"
    return [
        Entry(kind="hidden", nbytes=nbytes, evidence=(words,), hidden_by="namespace", confidence="likely")
    ]


def _shared(
    survey: IndexedSurvey, found: list[ClientGroup], client_holders: dict[tuple[int, ...], ClientHolders]
) -> list[Entry]:
    """Shared buffers show in every client that has them; which are the same is unknown."""
    sharing = sorted((group for group in found if group.shared), key=lambda group: -group.shared)
    if not sharing:
        return []
    first, who = sharing[0], client_holders[sharing[0].pids]
    others = {pid for group in sharing[1:] for pid in group.pids} | set(who.others)
    words = [f"fdinfo of pid {who.first}: {size(first.shared)} is shared with other clients"]
    if len(sharing) > 1:
        words.append(
            f"{counted(len(sharing) - 1, 'other set')} of clients share at most"
            f" {size(sharing[1].shared)}; shared memory is counted once"
        )
    ref = survey.processes[who.first][0] if who.first in survey.processes else None
    co_holders = holders(survey, sorted(others - {who.first}))
    return [
        Entry(
            kind="process",
            nbytes=first.shared,
            holder=holder(survey, ref, ("drm",)) if ref else departed(who.first, ("drm",)),
            co_holders=co_holders,
            sharing="all" if co_holders else None,
            evidence=tuple(words),
            confidence="likely",
            medium="shared",
        )
    ]


def _remainder(
    survey: IndexedSurvey, gpu: GpuObservations, found: list[ClientGroup], rest: int
) -> list[Entry]:
    if not rest:
        return []
    reported = "in use according to the device, but not in any readable client"
    entry = unexplained(survey, rest)
    why = entry.evidence[-1] if entry.kind == "hidden" else "the driver does not report its own part"
    entry = replace(entry, evidence=(reported, why))
    if not (found or gpu.compute or gpu.compute_system) and entry.kind != "hidden":
        word = "no process has the GPU open: this is the driver's own"
        return [Entry(kind="reserved", nbytes=rest, evidence=(word,), confidence="likely")]
    if rest <= (_SURELY_OWN if entry.kind == "hidden" else _DRIVERS_OWN):
        word = "charged to no client, like the driver's own tables, firmware and screen buffers"
        return [Entry(kind="overhead", nbytes=rest, evidence=(word,), confidence="likely")]
    silent = sorted({pid for group in found if not group.has_figure for pid in group.pids})
    if silent:
        word = f"{_have(silent)} the GPU open, and {gpu.driver} does not report how much that uses"
        return [replace(entry, evidence=(reported, word))]
    return [entry]


def _open_only(
    survey: IndexedSurvey, found: list[ClientGroup], client_holders: dict[tuple[int, ...], ClientHolders]
) -> tuple[OpenOnly, ...]:
    """Whoever inherited a client of a living process, or has the GPU open and uses nothing of it."""
    sources: dict[int, int | None] = {}
    users: set[int] = set()
    for group in found:
        who = client_holders[group.pids]
        if group.private or group.shared or group.system or not group.has_figure:
            users.add(who.first)
        else:
            sources.setdefault(who.first, None)
        for pid in who.others:
            if who.inherited:
                sources[pid] = who.first
    return tuple(
        OpenOnly(holder=holder(survey, survey.processes[pid][0]), inherited_from=source)
        for pid, source in sorted(sources.items())
        if pid in survey.processes and (source is not None or pid not in users)
    )


# ---- dma-bufs: they hold memory when no client has it any more ----


def dmabuf_entries(
    survey: IndexedSurvey, gpu: GpuObservations, found: Iterable[ClientGroup], rest: int
) -> list[Entry]:
    """Entries for buffers that no client of *gpu* can own, as far as *rest* has room for them.

    While its client lives, an exported buffer is part of the client's figures.
    """
    alone = sum(1 for each in survey.gpus.values() if each.driver == gpu.driver) == 1
    owned = max((_ownable(group) for group in found), default=0)
    entries = []
    for shares in by_allocation(share for share in survey.shares if share.exporter == gpu.driver):
        nbytes = shares[0].nbytes
        if alone and owned < nbytes <= rest:
            rest -= nbytes
            entries.append(_dmabuf_entry(survey, shares))
    return entries


def _ownable(group: ClientGroup) -> int:
    """The most that one exported buffer of these clients can have; older kernels report no shared part."""
    return max((client.shared or client.dedicated or 0 for client in group.clients), default=0)


def _dmabuf_entry(survey: IndexedSurvey, shares: list[ExportedDescriptor]) -> Entry:
    holding = holders(survey, sorted({share.process.pid for share in shares}))
    first = holding[0] if holding else holder(survey, shares[0].process)
    words = [
        f"descriptor {share.fd} of pid {share.process.pid} is a dma-buf of {size(share.nbytes)}"
        for share in shares
    ]
    words.append("no client of the GPU is large enough to have allocated it")
    return Entry(
        kind="exported",
        nbytes=shares[0].nbytes,
        holder=first,
        co_holders=holding[1:],
        sharing="all" if len(holding) > 1 else None,
        evidence=tuple(words),
        confidence="likely",
        medium="dmabuf",
    )


# ---- the machine's own memory: what an integrated GPU uses, and what others spill into ----


_MACHINES = "which the GPU takes from the machine's memory"


def system_memory(
    survey: IndexedSurvey,
    gpu: GpuObservations,
    found: list[ClientGroup],
    client_holders: dict[tuple[int, ...], ClientHolders],
) -> SystemMemory | None:
    """Everybody's part; None where nothing is used and nothing is reported."""
    entries = tuple(_system_entries(survey, gpu, found, client_holders))
    reported = gpu.system or SystemMemoryFacts(None, None)
    if reported.used is not None:
        entries = fit(entries, reported.used)
        rest = reported.used - known_bytes(entries)
        if rest:
            word = f"in use according to the device, but not in any readable client of {gpu.driver}"
            entries += (Entry(kind="unattributed", nbytes=rest, evidence=(word,), confidence="unknown"),)
    if not entries and not reported.used:
        return None
    ordered = tuple(sorted(entries, key=lambda entry: -(entry.nbytes or 0)))
    return SystemMemory(total_bytes=reported.total, used_bytes=reported.used, entries=ordered)


def _system_entries(
    survey: IndexedSurvey,
    gpu: GpuObservations,
    found: list[ClientGroup],
    client_holders: dict[tuple[int, ...], ClientHolders],
) -> Iterator[Entry]:
    """What clients report, with ROCm's figures where it uses this memory and reports more."""
    # ROCm lists the host's pids: inside of a namespace they name nobody, or somebody else.
    listed = {c.process.pid: c for c in gpu.compute_system} if survey.host.initial_pid_namespace else {}
    reported: dict[int, int] = {}
    for group in found:
        nbytes = group.system
        for pid in group.pids:
            reported[pid] = reported.get(pid, 0) + nbytes
    for group in found:
        rocm = listed.pop(group.pids[0], None) if len(group.pids) == 1 else None
        more = max(0, (rocm.nbytes or 0) - reported[group.pids[0]]) if rocm else 0
        if group.system or more:
            yield _system_entry(survey, group, client_holders[group.pids], rocm, more)
    for pid, charge in listed.items():
        more = max(0, (charge.nbytes or 0) - reported.get(pid, 0))
        if more and survey.alive(pid):
            yield _system_listed(survey, charge, more)


def _system_listed(survey: IndexedSurvey, charge: Charge, nbytes: int) -> Entry:
    words = f"ROCm's list names pid {charge.process.pid} with {size(charge.nbytes or 0)}"
    who = holder(survey, charge.process, charge.lists)
    return Entry(kind="process", nbytes=nbytes, holder=who, evidence=(f"{words}, {_MACHINES}",))


def _system_entry(
    survey: IndexedSurvey, group: ClientGroup, who: ClientHolders, rocm: Charge | None, more: int
) -> Entry:
    clients = counted(len(group.clients), "client")
    words = [f"fdinfo of pid {who.first}: {size(group.system)} of system memory in {clients}"]
    if rocm and rocm.nbytes:
        words.append(
            f"ROCm's list names pid {who.first} with {size(rocm.nbytes)}, {_MACHINES}; both count the"
            " same memory, so the larger figure is used"
        )
    ref = survey.processes[who.first][0] if who.first in survey.processes else None
    co_holders = holders(survey, who.others)
    return Entry(
        kind="process",
        nbytes=group.system + more,
        holder=holder(survey, ref, ("drm",)) if ref else departed(who.first, ("drm",)),
        co_holders=co_holders,
        sharing="all" if co_holders else None,
        evidence=tuple(words),
        confidence="fact" if group.certain else "likely",
    )
