"""Splits what a process is charged with by its own frameworks' account; the sum stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger.split import ordinals, uuids
from vram.model.kinds import Kind
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.model.trimming import CacheLine, Trimmed, Via
from vram.units import size


class Measured(Struct, frozen=True):
    """What a process told about itself, and through which door it was asked."""

    via: Via
    answer: Trimmed


class _Share(Struct):
    kind: Kind
    nbytes: int
    words: list[str]


def deepen(ledger: Ledger, measured: Mapping[int, Measured]) -> Ledger:
    """Return *ledger* with the entries of the processes in *measured* split, to the byte."""
    return replace(ledger, gpus=tuple(_gpu(gpu, measured, len(ledger.gpus) == 1) for gpu in ledger.gpus))


def _gpu(gpu: GpuLedger, measured: Mapping[int, Measured], is_only: bool) -> GpuLedger:
    if any(_is_pool(entry) for entry in gpu.entries):
        return _shared_out(gpu, measured, is_only)
    entries: list[Entry] = []
    for entry in gpu.entries:
        told = measured.get(entry.holder.pid) if entry.kind == "process" and entry.holder else None
        if told is None or entry.nbytes is None:
            entries.append(entry)
        else:
            entries += _split(entry, entry.nbytes, told, gpu, is_only)
    return replace(gpu, entries=tuple(entries))


def _is_pool(entry: Entry) -> bool:
    """Bytes of several processes together, as WSL2 shows them: what each told tells comes out of these."""
    return entry.kind == "guest" or entry.hidden_by == "windows"


def _shared_out(gpu: GpuLedger, measured: Mapping[int, Measured], is_only: bool) -> GpuLedger:
    pool = next(entry for entry in gpu.entries if _is_pool(entry))
    left, entries = pool.nbytes or 0, []
    for entry in gpu.entries:
        told = measured.get(entry.holder.pid) if entry.kind == "process" and entry.holder else None
        if told is not None and entry.nbytes is None:
            for share in _shares(_lines(told.answer, uuids(gpu, entry.gpu_instance), is_only)):
                nbytes = min(share.nbytes, left)
                left -= nbytes
                if nbytes:
                    entries.append(_own_account(entry, told, share, nbytes))
        entries.append(entry)
    entries[entries.index(pool)] = replace(pool, nbytes=left)
    return replace(gpu, entries=tuple(entries))


def _own_account(entry: Entry, told: Measured, share: _Share, nbytes: int) -> Entry:
    evidence = f"by its own account ({told.via}): {', '.join(share.words)}"
    return replace(
        entry, kind=share.kind, nbytes=nbytes, evidence=(evidence,), claimed=None, confidence="fact"
    )


def _split(entry: Entry, nbytes: int, told: Measured, gpu: GpuLedger, is_only: bool) -> Iterator[Entry]:
    left = nbytes
    for share in _shares(_lines(told.answer, uuids(gpu, entry.gpu_instance), is_only)):
        # Read a moment after the driver's figure: what does not fit was allocated in between.
        part = min(share.nbytes, left)
        left -= part
        if part:
            yield _own_account(entry, told, share, part)
    word = "what its frameworks do not account for: its context, code, and allocations outside them"
    yield replace(entry, kind="context", nbytes=left, evidence=(*entry.evidence, word), confidence="likely")


def _lines(answer: Trimmed, names: set[str], is_only: bool) -> list[CacheLine]:
    """The lines about told GPU: the process may number its GPUs in its own way."""
    numbers = ordinals(answer.devices, names, is_only=is_only)
    on_device = [line for line in answer.lines if line.memory == "device"]
    # Pools of the program's own do not say where they are; with told GPU there is no question.
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
