"""The account of a GPU of AMD or Intel: clients' figures, fitted into what the device says.

What keeps a byte from being counted twice:
- a client counts once, however many processes have it open (see drm_clients);
- ROCm's figure and the clients' figures of a process overlap: the larger of them counts;
- memory that clients share counts once for the GPU: the largest such figure, under its client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from vram.ledger.charges import gone, out_of_sight
from vram.ledger.drm_clients import ClientGroup, ClientHolders, client_groups
from vram.ledger.exports import exported_entry, statement
from vram.ledger.indexed_survey import (
    Charge,
    GpuObservations,
    IndexedSurvey,
    by_allocation,
    departed,
    holder,
    holders,
)
from vram.ledger.remainder import fit, overlapping, split, unexplained
from vram.model.files import SystemMemoryFacts
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Entry, GpuLedger, Kind, Note, OpenOnly, SystemMemory, known_bytes
from vram.model.process import ProcessRef
from vram.units import MIB, counted, size

# What the kernel's drivers use themselves is charged to no client: page tables, firmware, screen
# buffers. Nothing reports how much that is; beyond this it is called unexplained. Not measured.
_DRIVERS_OWN = 512 * MIB
_SURELY_OWN = 64 * MIB


def drm_ledger(survey: IndexedSurvey, gpu: GpuObservations) -> GpuLedger:
    """The balanced account of *gpu*."""
    found = client_groups(survey, gpu.clients)
    entries = [*_private(survey, gpu, found), *_shared(survey, found)]
    total, balanced, notes = _balance(survey, gpu, found, entries)
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
        open_only=_open_only(survey, found),
        facts=facts,
        memory=gpu.memory,
        vendor=facts.vendor if facts else "nvidia",
        system=system_memory(survey, gpu, found),
    )


def _no_size(gpu: GpuObservations) -> str:
    why = gpu.size_unknown or f"{gpu.driver} does not report how much memory the card has"
    return f"{why}; what its clients use is known"


def _balance(
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
    """What no process holds, by the driver's own figures."""
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


def _private(survey: IndexedSurvey, gpu: GpuObservations, found: list[ClientGroup]) -> list[Entry]:
    """What each set of processes has for itself, with ROCm's figures where those are larger."""
    outside = not survey.host.initial_pid_namespace
    reported = _sums(found, lambda group: group.private + group.shared)
    clients, listed = _with_rocm(found, () if outside else gpu.compute, reported)
    entries = [
        _private_entry(survey, gpu, group, charge, more)
        for group, charge, more in clients
        if group.private or more or not group.has_figure
    ]
    for charge, more in listed:
        if more or (charge.nbytes is None and charge.process.pid not in reported):
            entries.append(_listed_only(survey, charge, more or None))
    return entries + (_outside(gpu, sum(reported.values())) if outside else [])


def _with_rocm(
    found: list[ClientGroup], charges: Iterable[Charge], reported: dict[int, int]
) -> tuple[list[tuple[ClientGroup, Charge | None, int]], list[tuple[Charge, int]]]:
    """Each group of clients with ROCm's charge of its only process, and the other charges.

    Each with how much more ROCm reports of the process than its clients do.
    """
    listed = {charge.process.pid: charge for charge in charges}

    def more(charge: Charge | None) -> int:
        return max(0, (charge.nbytes or 0) - reported.get(charge.process.pid, 0)) if charge else 0

    own = [(group, listed.pop(group.pids[0], None) if len(group.pids) == 1 else None) for group in found]
    clients = [(group, charge, more(charge)) for group, charge in own]
    return clients, [(charge, more(charge)) for charge in listed.values()]


def _sums(found: list[ClientGroup], nbytes: Callable[[ClientGroup], int]) -> dict[int, int]:
    """What all clients of each process report together."""
    reported: dict[int, int] = {}
    for group in found:
        of_group = nbytes(group)
        for pid in group.pids:
            reported[pid] = reported.get(pid, 0) + of_group
    return reported


def _private_entry(
    survey: IndexedSurvey, gpu: GpuObservations, group: ClientGroup, listed: Charge | None, more: int
) -> Entry:
    who, evidence = group.who, [_figure(gpu, group)]
    if listed and listed.nbytes:
        evidence.append(
            f"ROCm's list names pid {who.first} with {size(listed.nbytes)}; both count the same memory,"
            " so the larger figure is used"
        )
    others = holders(survey, who.others)
    if others:
        evidence.append(_sharing(who))
    gone_owner = who.departed
    entry = _of_client(survey, who, group.private + more, evidence, who.others)
    if not (group.has_figure or more):
        entry = replace(entry, nbytes=None, confidence="unknown")
    elif group.certain and gone_owner is None:
        entry = replace(entry, confidence="fact")
    if gone_owner is None:
        return entry
    state = survey.state_of(gone_owner)
    return replace(entry, kind="orphaned", charged_pid=gone_owner, charged_state=state)


def _of_client(
    survey: IndexedSurvey, who: ClientHolders, nbytes: int, evidence: Sequence[str], others: Iterable[int]
) -> Entry:
    """The entry of a client's memory, likely its first holder's and that of *others*."""
    co_holders = holders(survey, others)
    return Entry(
        kind="process",
        nbytes=nbytes,
        holder=holder(survey, ProcessRef(who.first), ("drm",)),
        co_holders=co_holders,
        sharing="all" if co_holders else None,
        evidence=tuple(evidence),
        confidence="likely",
    )


def _figure(gpu: GpuObservations, group: ClientGroup) -> str:
    who = group.who
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
        charged_state=survey.state_of(pid),
        hidden_by=reason,
        evidence=tuple(evidence),
        confidence="likely" if reason else "unknown",
    )


def _outside(gpu: GpuObservations, reported: int) -> list[Entry]:
    """ROCm lists the host's pids: inside a namespace they name no process, and ours are among them."""
    nbytes = sum(charge.nbytes or 0 for charge in gpu.compute) - reported
    if nbytes <= 0:
        return []
    listed = counted(len(gpu.compute), "process")
    words = f"ROCm lists {listed} by host pids, which mean other processes here"
    return [
        Entry(kind="hidden", nbytes=nbytes, evidence=(words,), hidden_by="namespace", confidence="likely")
    ]


def _shared(survey: IndexedSurvey, found: list[ClientGroup]) -> list[Entry]:
    """Shared buffers show in every client that has them; which are the same is unknown."""
    sharing = sorted((group for group in found if group.shared), key=lambda group: -group.shared)
    if not sharing:
        return []
    first, who = sharing[0], sharing[0].who
    others = {pid for group in sharing[1:] for pid in group.pids} | set(who.others)
    words = [f"fdinfo of pid {who.first}: {size(first.shared)} is shared with other clients"]
    if len(sharing) > 1:
        words.append(
            f"{counted(len(sharing) - 1, 'other set')} of clients share at most"
            f" {size(sharing[1].shared)}; shared memory is counted once"
        )
    entry = _of_client(survey, who, first.shared, words, others - {who.first})
    return [replace(entry, medium="shared")]


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


def _open_only(survey: IndexedSurvey, found: list[ClientGroup]) -> tuple[OpenOnly, ...]:
    """Processes that inherited a client of a living one, or have the GPU open and use nothing of it."""
    sources: dict[int, int | None] = {}
    users: set[int] = set()
    for group in found:
        who = group.who
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
            evidence = [statement(share) for share in shares]
            evidence.append("no client of the GPU is large enough to have allocated it")
            entries.append(exported_entry(survey, shares, evidence, "likely"))
    return entries


def _ownable(group: ClientGroup) -> int:
    """The most that one exported buffer of these clients can have; older kernels report no shared part."""
    return max((client.shared or client.dedicated or 0 for client in group.clients), default=0)


# ---- the machine's own memory: what an integrated GPU uses, and what others spill into ----


_MACHINES = "which the GPU takes from the machine's memory"


def system_memory(
    survey: IndexedSurvey, gpu: GpuObservations, found: list[ClientGroup]
) -> SystemMemory | None:
    """Each process's part; None where nothing is used and nothing is reported."""
    entries = tuple(_system_entries(survey, gpu, found))
    reported = gpu.system or SystemMemoryFacts(None, None)
    if reported.used is not None:
        entries = fit(entries, reported.used)
        rest = reported.used - known_bytes(entries)
        if rest:
            word = f"in use according to the device, but not in any readable client of {gpu.driver}"
            entries += (Entry(kind="unattributed", nbytes=rest, evidence=(word,), confidence="unknown"),)
    if not entries and not reported.used:
        return None
    return SystemMemory(total_bytes=reported.total, used_bytes=reported.used, entries=_by_size(entries))


def _system_entries(survey: IndexedSurvey, gpu: GpuObservations, found: list[ClientGroup]) -> Iterator[Entry]:
    """What clients report, with ROCm's figures where it uses this memory and reports more."""
    # ROCm lists the host's pids: inside of a namespace they name no process, or another one.
    charges = gpu.compute_system if survey.host.initial_pid_namespace else ()
    clients, listed = _with_rocm(found, charges, _sums(found, lambda group: group.system))
    for group, rocm, more in clients:
        if group.system or more:
            yield _system_entry(survey, group, rocm, more)
    for charge, more in listed:
        if more and survey.alive(charge.process.pid):
            words = f"ROCm's list names pid {charge.process.pid} with {size(charge.nbytes or 0)}, {_MACHINES}"
            who = holder(survey, charge.process, charge.lists)
            yield Entry(kind="process", nbytes=more, holder=who, evidence=(words,))


def _system_entry(survey: IndexedSurvey, group: ClientGroup, rocm: Charge | None, more: int) -> Entry:
    who = group.who
    clients = counted(len(group.clients), "client")
    words = [f"fdinfo of pid {who.first}: {size(group.system)} of system memory in {clients}"]
    if rocm and rocm.nbytes:
        words.append(
            f"ROCm's list names pid {who.first} with {size(rocm.nbytes)}, {_MACHINES}; both count the"
            " same memory, so the larger figure is used"
        )
    entry = _of_client(survey, who, group.system + more, words, who.others)
    return replace(entry, confidence="fact") if group.certain else entry
