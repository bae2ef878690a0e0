"""Divides what a process is charged with by its own frameworks' account; the sum stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vram.model.inside import CacheLine, Inside, Split, Trimmed, Via
from vram.model.ledger import Entry, GpuLedger, Kind, Ledger, known_bytes
from vram.units import GIB, size

_MAX_CONTEXT = GIB
"""A context costs 518 MiB on an H200, and the code of libraries such as cuBLAS a few hundred more. What is
beyond that was allocated by something that no framework accounts for."""


class Measured(Struct, frozen=True):
    """What a process reported of itself, how it was asked, and for how long it and its threads waited."""

    via: Via
    answer: Trimmed
    stopped_s: float | None = None
    waited_s: float | None = None


def caches_nothing(reported: Measured) -> bool:
    """Whether a program without Python was asked, and has no pool or cache that could be trimmed."""
    return reported.via == "native" and all(line.reclaimable == 0 for line in reported.answer.lines)


class _Share(Struct):
    kind: Kind
    nbytes: int
    words: list[str]


def deepen(ledger: Ledger, measured: Mapping[int, Measured]) -> Ledger:
    """Return *ledger* with the entries of the processes in *measured* split, to the byte."""
    return replace(ledger, gpus=tuple(_gpu(gpu, measured, len(ledger.gpus) == 1) for gpu in ledger.gpus))


def _gpu(gpu: GpuLedger, measured: Mapping[int, Measured], is_only: bool) -> GpuLedger:
    pool = next((entry for entry in gpu.entries if _is_pool(entry)), None)
    if pool is not None:
        return _shared_out(gpu, pool, measured, is_only)
    entries: list[Entry] = []
    for entry in gpu.entries:
        reported = _report_on(entry, measured)
        if reported is None or entry.nbytes is None:
            entries.append(entry)
        else:
            entries += _split_entry(entry, entry.nbytes, reported, gpu, is_only)
    return replace(gpu, entries=tuple(entries))


def _report_on(entry: Entry, measured: Mapping[int, Measured]) -> Measured | None:
    return measured.get(entry.holder.pid) if entry.kind == "process" and entry.holder else None


def _is_pool(entry: Entry) -> bool:
    """Bytes of several processes together, as WSL2 shows them: what each reports comes out of these."""
    return entry.kind == "guest" or entry.hidden_by == "windows"


def _shared_out(gpu: GpuLedger, pool: Entry, measured: Mapping[int, Measured], is_only: bool) -> GpuLedger:
    left, entries = pool.nbytes or 0, []
    for entry in gpu.entries:
        reported = _report_on(entry, measured)
        if reported is not None and entry.nbytes is None:
            for share in _shares(reported.answer, uuids(gpu, entry.gpu_instance), is_only):
                nbytes = min(share.nbytes, left)
                left -= nbytes
                if nbytes:
                    entries.append(_own_account(entry, reported, share, nbytes))
        entries.append(entry)
    entries[entries.index(pool)] = replace(pool, nbytes=left)
    return replace(gpu, entries=tuple(entries))


def _own_account(entry: Entry, reported: Measured, share: _Share, nbytes: int) -> Entry:
    evidence = f"reported by the process itself ({reported.via}): {', '.join(share.words)}"
    return replace(
        entry,
        kind=share.kind,
        nbytes=nbytes,
        evidence=(evidence,),
        claimed=None,
        taken_over=(),
        confidence="fact",
    )


def _split_entry(
    entry: Entry, nbytes: int, reported: Measured, gpu: GpuLedger, is_only: bool
) -> Iterator[Entry]:
    left = nbytes
    for share in _shares(reported.answer, uuids(gpu, entry.gpu_instance), is_only):
        # Read a moment after the driver's figure: what does not fit was allocated in between.
        part = min(share.nbytes, left)
        left -= part
        if part:
            yield _own_account(entry, reported, share, part)
    # A program without Python allocates by itself: of it only pools are known.
    if left > _MAX_CONTEXT or reported.via == "native":
        kind: Kind = "outside"
        word = "not accounted for by its frameworks and pools: allocations outside them, its context and code"
    else:
        kind, word = "context", "not accounted for by its frameworks and pools: its context and code"
    yield replace(entry, kind=kind, nbytes=left, evidence=(*entry.evidence, word), confidence="likely")


def _shares(answer: Trimmed, names: set[str], is_only: bool) -> list[_Share]:
    """What the process accounts for on this GPU, which it may number in its own way."""
    numbers = ordinals(answer.devices, names, is_only=is_only)
    live, cached, fragmented = (_Share(kind, 0, []) for kind in ("live", "cached", "fragmented"))
    for line in answer.lines:
        # Where unused bytes are not reported, they lie in the driver's pool, which reports them.
        if not _is_here(line, numbers) or None in (line.held, line.reclaimable, line.used):
            continue
        parts = ((live, line.used), (cached, line.reclaimable), (fragmented, _lost(line)))
        for share, nbytes in parts:
            if nbytes:
                share.nbytes += nbytes
                share.words.append(f"{line.name} {size(nbytes)}")
    return [live, cached, fragmented]


# ---- the same for `vram inside`: one process's own account beside its charge ----


# Frameworks whose arrays lie in a pool of their own, so that both figures count the same bytes.
_OWN_POOL = ("PyTorch", "CuPy", "JAX")


def ordinals(devices: Mapping[str, str | None], uuids: set[str], *, is_only: bool) -> set[int]:
    """By which numbers a process knows the GPU that has one of *uuids* (their digits alone)."""
    known = {int(number): name for number, name in devices.items() if number.isdecimal()}
    found = {number for number, name in known.items() if name and name[4:] in uuids}
    return set(known) if not found and is_only and len(known) == 1 else found


def uuids(gpu: GpuLedger, gpu_instance: int | None) -> set[str]:
    """By which names a process may know where it runs; only the digits of them are alike everywhere."""
    inside = [each.devices for each in gpu.instances if each.gpu_instance == gpu_instance]
    return {(gpu.uuid or "")[4:], *(device.uuid[4:] for devices in inside for device in devices)} - {""}


def gpus_of(ledger: Ledger, pid: int, answer: Inside) -> dict[int, int]:
    """The machine's number of each GPU that the process numbers in its own way."""
    found = {}
    for gpu in ledger.gpus:
        instances = {entry.gpu_instance for entry in _charges(gpu, pid)} or {None}
        for instance in instances:
            numbers = ordinals(answer.devices, uuids(gpu, instance), is_only=len(ledger.gpus) == 1)
            found.update(dict.fromkeys(numbers, gpu.index))
    if len(ledger.gpus) == 1:  # also what lies in contexts that are not reported
        found.update((each.device, ledger.gpus[0].index) for each in answer.groups if each.device is not None)
    return found


def splits(ledger: Ledger, pid: int, answer: Inside, gpu_of: Mapping[int, int]) -> Iterator[Split]:
    """One for each GPU that the process is charged for."""
    for gpu in ledger.gpus:
        charged = known_bytes(_charges(gpu, pid))
        if charged:
            numbers = {number for number, index in gpu_of.items() if index == gpu.index}
            yield _account_split(gpu.index, charged, answer, numbers)


def _charges(gpu: GpuLedger, pid: int) -> list[Entry]:
    return [
        entry
        for entry in gpu.accounted
        if entry.kind == "process" and entry.holder is not None and entry.holder.pid == pid
    ]


def _account_split(index: int, charged: int, answer: Inside, numbers: set[int]) -> Split:
    # Read a moment after the driver's figure: what does not fit was allocated in between.
    left = charged

    def part(nbytes: int) -> int:
        nonlocal left
        taken = min(max(nbytes, 0), left)
        left -= taken
        return taken

    theirs = [line for line in answer.lines if _is_here(line, numbers)]
    used = {name: sum(line.used or 0 for line in theirs if line.name == name) for name in _OWN_POOL}
    by_framework = _arrays(answer, numbers)
    arrays = part(sum(by_framework.values()))
    unseen = part(sum(max(0, used[name] - by_framework.get(name, 0)) for name in _OWN_POOL))
    cached = part(sum(line.reclaimable or 0 for line in theirs))
    pooled = part(sum(_lost(line) for line in theirs))
    return Split(
        gpu=index, charged=charged, arrays=arrays, unseen=unseen, cached=cached, pooled=pooled, rest=left
    )


def _arrays(answer: Inside, numbers: set[int]) -> dict[str, int]:
    """Bytes of arrays on one GPU by framework; on a process's only GPU also those that were left out."""
    if len(answer.devices) == 1 and len(numbers) == 1:
        return dict(answer.frameworks)
    totals: dict[str, int] = {}
    for group in answer.groups:
        if group.device in numbers:
            totals[group.framework] = totals.get(group.framework, 0) + group.nbytes
    return totals


def _is_here(line: CacheLine, numbers: set[int]) -> bool:
    # Pools of the program's own do not say where they are; with one GPU there is no question.
    alone = line.device is None and len(numbers) == 1
    return line.memory == "device" and (line.device in numbers or alone)


def _lost(line: CacheLine) -> int:
    if line.held is None or line.reclaimable is None or line.used is None:
        return 0
    return max(0, line.held - line.reclaimable - line.used)
