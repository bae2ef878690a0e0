"""``vram why PID --json``: what of a GPU's memory concerns one process. Unknown is null."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.finding import Finding
from vram.model.ledger import Entry, Ledger, OpenOnly
from vram.report.json import encode


class GpuPart(Struct, frozen=True, kw_only=True):
    """The entries of one GPU that name the process; they do not sum to ``total_bytes``."""

    index: int
    uuid: str | None
    name: str
    total_bytes: int | None
    entries: tuple[Entry, ...]
    open_only: tuple[OpenOnly, ...]


class ProcessReport(Struct, frozen=True, kw_only=True):
    """The process is an entry's holder, one of its co-holders, or the pid that the driver charges.

    ``notes`` say why its inside is not told, where it is not.
    """

    schema: Literal[2] = 2
    taken_at: str
    pid: int
    gpus: tuple[GpuPart, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def report(ledger: Ledger, pid: int, findings: tuple[Finding, ...], notes: tuple[str, ...]) -> bytes:
    """Encode a ledger that was narrowed to one process."""
    gpus = tuple(
        GpuPart(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            entries=(*gpu.entries, *(gpu.system.entries if gpu.system else ())),
            open_only=gpu.open_only,
        )
        for gpu in ledger.gpus
    )
    return encode(ProcessReport(taken_at=ledger.taken_at, pid=pid, gpus=gpus, findings=findings, notes=notes))
