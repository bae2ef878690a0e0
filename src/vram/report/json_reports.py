"""``--json`` of ``doctor``, ``inside``, ``oom``, ``reset``, and of ``free`` and ``kill``. Unknown is null."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.model.doctor import CheckResult, Examination, Verdict
from vram.model.inside import InsideReceipt
from vram.model.observation import HostFacts
from vram.model.oom import Case
from vram.model.plan import Blocker, Draft, JobActivity, Plan, Receipt, Skipped
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


def doctor(examination: Examination, host: HostFacts, taken_at: str) -> bytes:
    return encode(
        DoctorReport(
            schema=1,
            taken_at=taken_at,
            host=host,
            verdict=examination.verdict,
            checks=examination.results,
        )
    )


class InsideReport(Struct, frozen=True, kw_only=True):
    """``answer`` is the process's own account; ``charged`` in ``splits`` is the driver's figure.

    ``answer.left_out`` says what an answer had no room for.
    """

    schema: Literal[1] = 1
    inside: InsideReceipt


def inside(receipt: InsideReceipt) -> bytes:
    return encode(InsideReport(inside=receipt))


class OomReport(Struct, frozen=True, kw_only=True):
    """``nbytes`` were read. ``unkept`` messages are beyond the most that are kept apart."""

    schema: Literal[2] = 2
    nbytes: int
    cases: tuple[Case, ...]
    unkept: int


def oom(cases: tuple[Case, ...], unkept: int, nbytes: int) -> bytes:
    shown = tuple(replace(case, reading=case.message.as_reading()) for case in cases)
    return encode(OomReport(nbytes=nbytes, cases=shown, unkept=unkept))


class ReclaimReport(Struct, frozen=True, kw_only=True):
    """``receipt`` is null where nothing was run. ``returned_bytes`` in it are measured.

    ``left`` is memory of dead owners that was still there
    when all of it had been asked for. ``activity`` is what jobs that the plan ends did while it was made.
    """

    schema: Literal[2] = 2
    executed: bool
    plan: Plan
    skipped: tuple[Skipped, ...]
    receipt: Receipt | None
    left: tuple[Skipped, ...] = ()
    activity: tuple[JobActivity, ...] = ()


def reclaim(draft: Draft, receipt: Receipt | None, left: tuple[Skipped, ...] = ()) -> bytes:
    return encode(
        ReclaimReport(
            executed=receipt is not None,
            plan=draft.plan,
            skipped=draft.skipped,
            receipt=receipt,
            left=left,
            activity=draft.activity,
        )
    )


class ResetReport(Struct, frozen=True, kw_only=True):
    """``blockers`` empty: the GPU could be reset. ``receipt`` null: it was not."""

    schema: int = 1
    gpu: int
    blockers: tuple[Blocker, ...]
    command: str
    receipt: Receipt | None
    advice: str | None = None
    """What the driver itself advises for the GPU; null: it says nothing."""


def reset(
    gpu: int,
    blockers: tuple[Blocker, ...],
    command: str,
    receipt: Receipt | None,
    advice: str | None = None,
) -> bytes:
    report = ResetReport(gpu=gpu, blockers=blockers, command=command, receipt=receipt, advice=advice)
    return encode(report)
