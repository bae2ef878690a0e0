"""What a row is, and how it is scored: every expectation is kept, met or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from machine import GpuReading, Machine, ProgramFailed

MIB = 1024**2
GIB = 1024**3
NEAR = 8 * MIB
"""Readings on real hardware wander by this much: page tables and the driver's own bookkeeping."""


class Skipped(Exception):
    """The row cannot run on this machine; the text says why."""


RowFunction: TypeAlias = Callable[["Score"], None]


@dataclass(frozen=True)
class Row:
    """One line of a table of measured behaviour, and the function that shows it."""

    name: str
    table: str
    situation: str
    expected: str
    run: RowFunction


@dataclass
class Score:
    """What was measured while a row ran, and what of it was not as expected."""

    machine: Machine
    before: GpuReading
    real: bool
    measured: dict[str, Any] = field(default_factory=dict)
    unmet: list[str] = field(default_factory=list)

    @property
    def is_h200(self) -> bool:
        """Figures in MiB were measured on this one; other GPUs must only show the same relations."""
        return "H200" in self.machine.gpu["name"]

    @property
    def touched_bytes(self) -> int:
        """How much a row really writes, and reads back through the host; a virtual GPU's is host memory."""
        return 256 * MIB if self.real else 32 * MIB

    def read(self, stage: str) -> GpuReading:
        """Read the GPU and keep what changed since the row began, in MiB."""
        seen = self.machine.read()
        new = {pid: nbytes for pid, nbytes in seen.listed.items() if pid not in self.before.listed}
        listed = {pid: mib(nbytes) for pid, nbytes in new.items()}
        self.measured[stage] = {"used": mib(self.grown(seen)), "listed": listed}
        return seen

    def grown(self, seen: GpuReading) -> int:
        """Bytes in use beyond those at the row's start."""
        return seen.used - self.before.used

    def expect(self, promise: str, holds: bool) -> None:
        if not holds:
            self.unmet.append(promise)

    def expect_near(self, promise: str, nbytes: int, wanted: int, within: int = NEAR) -> None:
        if abs(nbytes - wanted) > within:
            self.unmet.append(f"{promise}: {mib(nbytes)} MiB, not {mib(wanted)} ± {mib(within)}")


def mib(nbytes: int) -> float:
    return round(nbytes / MIB, 1)


def run(row: Row, machine: Machine, *, real: bool) -> dict[str, Any]:
    """RowFunction one row; return it as evidence. Nothing may stay behind."""
    began = time.monotonic()
    score = Score(machine, machine.read(), real)
    status = ""
    try:
        row.run(score)
        left = machine.read().used - score.before.used
        score.expect_near("left behind at the end", left, 0)
    except Skipped as reason:
        status = f"skipped: {reason}"
    except (ProgramFailed, OSError, KeyError) as error:
        score.unmet.append(f"{type(error).__name__}: {error}")
    return _evidence(row, score, status or ("ok" if not score.unmet else "failed"), time.monotonic() - began)


def _evidence(row: Row, score: Score, status: str, took_s: float) -> dict[str, Any]:
    return {
        "row": row.name,
        "table": row.table,
        "situation": row.situation,
        "expected": row.expected,
        "measured": score.measured,
        "unmet": score.unmet,
        "status": status,
        "ok": None if status.startswith("skipped") else not score.unmet,
        "took_s": round(took_s, 2),
    }


class Table:
    """Collects the rows of one table in the order they are written."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[Row] = []

    def row(self, situation: str, expected: str) -> Callable[[RowFunction], RowFunction]:
        """Add a function as a row; its name becomes the row's name."""

        def add(run: RowFunction) -> RowFunction:
            self.rows.append(Row(run.__name__, self.title, situation, expected, run))
            return run

        return add


def total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())
