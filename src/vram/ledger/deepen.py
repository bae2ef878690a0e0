"""Splits what a process is charged with by its own frameworks' account; the sum stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vram.model.ledger import Entry, GpuLedger, Kind, Ledger
from vram.model.trimming import CacheLine, Trimmed, Via
from vram.units import size


class Inside(Struct, frozen=True):
    """What a process told about itself, and through which door it was asked."""

    via: Via
    answer: Trimmed


class _Share(Struct):
    kind: Kind
    nbytes: int
    words: list[str]


def deepen(ledger: Ledger, insides: Mapping[int, Inside]) -> Ledger:
    """Return *ledger* with the entries of the processes in *insides* split, to the byte."""
    return replace(ledger, gpus=tuple(_gpu(gpu, insides, len(ledger.gpus) == 1) for gpu in ledger.gpus))


def _gpu(gpu: GpuLedger, insides: Mapping[int, Inside], is_only: bool) -> GpuLedger:
    if any(_is_pool(entry) for entry in gpu.entries):
        return _shared_out(gpu, insides, is_only)
    entries: list[Entry] = []
    for entry in gpu.entries:
        inside = insides.get(entry.holder.pid) if entry.kind == "process" and entry.holder else None
        entries += [entry] if inside is None else _split(entry, inside, gpu, is_only)
    return replace(gpu, entries=tuple(entries))


def _is_pool(entry: Entry) -> bool:
    """Bytes of several processes together, as WSL2 shows them: what each one tells comes out of these."""
    return entry.kind == "guest" or entry.hidden_by == "windows"


def _shared_out(gpu: GpuLedger, insides: Mapping[int, Inside], is_only: bool) -> GpuLedger:
    pool = next(entry for entry in gpu.entries if _is_pool(entry))
    left, entries = pool.nbytes, []
    for entry in gpu.entries:
        inside = insides.get(entry.holder.pid) if entry.kind == "process" and entry.holder else None
        if inside is not None and entry.confidence == "unknown":
            for share in _shares(_lines(inside.answer, _uuids(gpu, entry), is_only)):
                nbytes = min(share.nbytes, left)
                left -= nbytes
                if nbytes:
                    entries.append(_own_account(entry, inside, share, nbytes))
        entries.append(entry)
    entries[entries.index(pool)] = replace(pool, nbytes=left)
    return replace(gpu, entries=tuple(entries))


def _own_account(entry: Entry, inside: Inside, share: _Share, nbytes: int) -> Entry:
    evidence = f"by its own account ({inside.via}): {', '.join(share.words)}"
    return replace(
        entry, kind=share.kind, nbytes=nbytes, evidence=(evidence,), claimed=None, confidence="fact"
    )


def _split(entry: Entry, inside: Inside, gpu: GpuLedger, is_only: bool) -> Iterator[Entry]:
    left = entry.nbytes
    for share in _shares(_lines(inside.answer, _uuids(gpu, entry), is_only)):
        # Read a moment after the driver's figure: what does not fit was allocated in between.
        nbytes = min(share.nbytes, left)
        left -= nbytes
        if nbytes:
            yield _own_account(entry, inside, share, nbytes)
    word = "what its frameworks do not account for: its context, code, and allocations outside them"
    yield replace(entry, kind="context", nbytes=left, evidence=(*entry.evidence, word), confidence="likely")


def _uuids(gpu: GpuLedger, entry: Entry) -> set[str]:
    """By which names the process may know where it runs; only the digits of them are alike everywhere."""
    inside = [each.devices for each in gpu.instances if each.gpu_instance == entry.gpu_instance]
    return {(gpu.uuid or "")[4:], *(device.uuid[4:] for devices in inside for device in devices)}


def _lines(answer: Trimmed, uuids: set[str], is_only: bool) -> list[CacheLine]:
    """The lines about one GPU: the process may number its GPUs in its own way."""
    numbers = {int(number) for number, name in answer.devices.items() if name and name[4:] in uuids}
    if not numbers and is_only and len(answer.devices) == 1:
        numbers = set(map(int, answer.devices))
    on_device = [line for line in answer.lines if line.memory == "device"]
    # Pools of the program's own do not say where they are; with one GPU there is no question.
    return [
        line for line in on_device if line.device in numbers or (line.device is None and len(numbers) == 1)
    ]


def _shares(lines: list[CacheLine]) -> list[_Share]:
    live, cached, fragmented = (_Share(kind, 0, []) for kind in ("live", "cached", "fragmented"))
    for line in lines:
        # Where unused bytes are not told, they lie in the driver's pool, which tells them.
        if line.held is None or line.reclaimable is None or line.used is None:
            continue
        lost = max(0, line.held - line.reclaimable - line.used)
        for share, nbytes in ((live, line.used), (cached, line.reclaimable), (fragmented, lost)):
            if nbytes:
                share.nbytes += nbytes
                share.words.append(f"{line.name} {size(nbytes)}")
    return [live, cached, fragmented]
