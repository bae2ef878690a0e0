"""What the lab reports: a claim about GPU memory, and what testing it here showed."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Verdict = Literal["true here", "false here", "cannot tell"]
Unit = Literal["bytes", "seconds", "count", "code"]


class LabClaim(Struct, frozen=True, kw_only=True):
    """One claim, where it comes from, and how it is tested. ``page`` is all of it as text."""

    name: str
    topic: str
    claim: str
    source: str
    method: str
    reading: str
    takes_bytes: int
    """The most device memory that it may have in use at once, contexts included."""
    deadline_s: float
    fails_kernels: bool = False
    """It makes a kernel fail, which the driver logs (Xid): run only by name or with ``--faults``."""
    page: str


class LabCatalogue(Struct, frozen=True, kw_only=True):
    """``vram lab list --json``."""

    schema: Literal[1] = 1
    experiments: tuple[LabClaim, ...]


class Figure(Struct, frozen=True):
    """One figure that decided. Its name says what was measured, and when."""

    name: str
    value: float
    unit: Unit


class StageReading(Struct, frozen=True):
    """One reading of the device: what came into use since the experiment began, and what lists charged.

    ``listed_bytes`` are the charges of the experiment's own processes.
    """

    stage: str
    used_bytes: int
    listed_bytes: int


class Result(Struct, frozen=True, kw_only=True):
    """What one experiment showed. ``because`` is the sentence with the deciding figures in it."""

    experiment: str
    topic: str
    claim: str
    source: str
    verdict: Verdict
    because: str
    figures: tuple[Figure, ...] = ()
    readings: tuple[StageReading, ...] = ()
    took_s: float = 0.0


class LabReport(Struct, frozen=True, kw_only=True):
    """``vram lab run --json``: every verdict holds for this GPU, this driver and this day alone.

    On a virtual GPU ``virtual`` is true, and the verdicts show its model: they are no evidence.
    """

    schema: Literal[1] = 1
    taken_at: str
    program: str
    gpu: str
    index: int
    driver: str | None
    cuda: str | None
    kernel: str
    python: str
    virtual: bool
    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()
    """Experiments that were asked for and not finished, because the run was interrupted."""
    without_faults: tuple[str, ...] = ()
    """Experiments that make a kernel fail, which were neither named nor asked for by ``--faults``."""
