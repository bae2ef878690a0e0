"""``vram why --json`` and ``vram why PID --json``: one object that scripts can rely on. Unknown is null."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from vram.model.finding import Finding, FindingFields
from vram.model.gpu import DriverFacts
from vram.model.ledger import Entry, GpuLedger, Ledger, OpenOnly
from vram.model.observation import HostFacts, ProbeRun
from vram.model.process import ParkedProcess
from vram.report.escape import inert, json_inert


class _ReportedFinding(FindingFields, frozen=True, kw_only=True):
    """A cause that a rule found in the ledger."""


_ReportedFinding.__name__ = "Finding"  # what the schema calls it


class WhyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where each byte of every GPU is, who holds it, how we know, and what to do.

    The entries of a GPU sum to its ``total_bytes``. ``schema`` changes when a field changes
    its meaning or goes away; new fields may come without that.
    """

    schema: Literal[2]
    taken_at: str
    host: HostFacts
    driver: DriverFacts | None
    gpus: tuple[GpuLedger, ...]
    findings: tuple[_ReportedFinding, ...]
    probes: tuple[ProbeRun, ...]
    parked: tuple[ParkedProcess, ...] = ()


def why(ledger: Ledger, findings: tuple[Finding, ...], *, compact: bool = False) -> bytes:
    """Encode the whole answer; *compact* puts it on one line. Ends with a newline."""
    return encode(
        WhyReport(
            schema=2,
            taken_at=ledger.taken_at,
            host=ledger.host,
            driver=ledger.driver,
            gpus=ledger.gpus,
            findings=_reported(findings),
            probes=ledger.probes,
            parked=ledger.parked,
        ),
        compact=compact,
    )


def _reported(findings: tuple[Finding, ...]) -> tuple[_ReportedFinding, ...]:
    return msgspec.convert(findings, tuple[_ReportedFinding, ...], from_attributes=True)


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of one GPU that name the process; they do not sum to ``total_bytes``."""

    index: int
    uuid: str | None
    name: str
    total_bytes: int | None
    entries: tuple[Entry, ...]
    open_only: tuple[OpenOnly, ...]


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The process is an entry's holder, one of its co-holders, or the pid that the driver charges.

    ``notes`` say why what it holds is not divided, where it is not.
    """

    schema: Literal[2] = 2
    taken_at: str
    pid: int
    gpus: tuple[GpuPart, ...]
    findings: tuple[_ReportedFinding, ...]
    notes: tuple[str, ...]


def process(ledger: Ledger, pid: int, findings: tuple[Finding, ...], notes: tuple[str, ...]) -> bytes:
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
    about = _reported(findings)
    return encode(ProcessReport(taken_at=ledger.taken_at, pid=pid, gpus=gpus, findings=about, notes=notes))


def encode(report: msgspec.Struct, *, compact: bool = False) -> bytes:
    """Encode any report so that it is valid JSON whatever the names in it are."""
    try:
        encoded = msgspec.json.encode(report)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(report)))
    if not compact:
        encoded = msgspec.json.format(encoded, indent=2)
    return json_inert(encoded) + b"\n"


def _without_surrogates(value: Any) -> Any:
    """Spell bytes that were never UTF-8 as text: JSON has no other way to carry them."""
    if isinstance(value, str):
        return value if _encodes(value) else "".join(c if _encodes(c) else inert(c) for c in value)
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def _encodes(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
