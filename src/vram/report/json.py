"""``vram why --json``: one object that scripts can rely on. Unknown is null."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from vram.model.finding import Finding
from vram.model.gpu import DriverFacts
from vram.model.ledger import GpuLedger, Ledger, ParkedProcess
from vram.model.observation import HostFacts, ProbeRun
from vram.report.escape import inert, json_inert


class WhyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where each byte of every GPU is, who keeps it there, how we know, and what to do.

    The entries of a GPU sum to its ``total_bytes``. ``schema`` changes when a field changes
    its meaning or goes away; new fields may come without that.
    """

    schema: Literal[2]
    taken_at: str
    host: HostFacts
    driver: DriverFacts | None
    gpus: tuple[GpuLedger, ...]
    findings: tuple[Finding, ...]
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
            findings=findings,
            probes=ledger.probes,
            parked=ledger.parked,
        ),
        compact=compact,
    )


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
