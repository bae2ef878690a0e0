"""``vram doctor --json``: one object that scripts can rely on."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.doctor import CheckResult, Examination, Verdict
from vram.model.observation import HostFacts
from vram.report.json import encode


class DoctorReport(Struct, frozen=True, kw_only=True):
    """What ``vram doctor --json`` prints. The exit code says the same as ``verdict``.

    ``schema`` changes when a field changes its meaning or goes away; new fields and new checks
    may come without that.
    """

    schema: Literal[1]
    taken_at: str
    host: HostFacts
    verdict: Verdict
    checks: tuple[CheckResult, ...]


def report(examination: Examination, host: HostFacts, taken_at: str) -> bytes:
    return encode(
        DoctorReport(
            schema=1,
            taken_at=taken_at,
            host=host,
            verdict=examination.verdict,
            checks=examination.results,
        )
    )
