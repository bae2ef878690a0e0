"""``vram check``: a line for each holder, or one object for scripts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.diagnosis.verdict import GpuVerdict, Verdict
from vram.model.ledger import Entry, Ledger
from vram.model.observation import HostFacts
from vram.report.escape import inert
from vram.report.json import encode
from vram.report.layout import MEANINGS, label
from vram.report.phrases import command, gpu_label, identity, sharing, windows_process
from vram.units import size


class CheckReport(Struct, frozen=True, kw_only=True):
    """``vram check --json``: the verdict over all GPUs that were asked for, and each one's own."""

    schema: Literal[2]
    taken_at: str
    host: HostFacts
    verdict: Verdict
    gpus: tuple[GpuVerdict, ...]


def json(ledger: Ledger, verdict: Verdict, verdicts: tuple[GpuVerdict, ...]) -> bytes:
    """Encode the answer; the exit code says the same as ``verdict``."""
    return encode(
        CheckReport(schema=2, taken_at=ledger.taken_at, host=ledger.host, verdict=verdict, gpus=verdicts)
    )


def text(ledger: Ledger, verdicts: tuple[GpuVerdict, ...], free_command: str | None = None) -> str:
    """Return one line per clean or unknown GPU, one per holder of the others, and the command that helps."""
    lines = [line for verdict in verdicts for line in _lines(verdict)] or _silence(ledger)
    if free_command:
        lines.append(f"To free it: {free_command}")
    return "".join(f"{inert(line)}\n" for line in lines)


def _silence(ledger: Ledger) -> list[str]:
    """Why no GPU was found, where a driver is there and did not answer."""
    trouble = ("failed", "timeout", "lost", "denied")
    driver = [each for each in ledger.probes if each.name == "nvml" and each.status in trouble]
    return [f"unknown: {each.message or each.status}" for each in driver]


def _lines(gpu: GpuVerdict) -> list[str]:
    name = gpu_label(gpu)
    if gpu.verdict == "unknown":
        return [f"{name}: unknown: {gpu.reason}"]
    if gpu.verdict == "clean":
        passed = f", {size(gpu.held_bytes)} allowed" if gpu.held_bytes else ""
        return [f"{name}: clean{passed}"]
    return [f"{name}: {_held(entry)}" for entry in sorted(gpu.entries, key=lambda e: -(e.nbytes or 0))]


def _held(entry: Entry) -> str:
    amount = "unknown size" if entry.nbytes is None else size(entry.nbytes)
    if entry.kind == "windows" and entry.windows is not None:
        return f"{amount} held by {', '.join(windows_process(entry.windows))}"
    if entry.sharing == "together" and entry.co_holders:
        return f"{amount} held by {sharing(entry)}"
    if entry.holder is None:
        return f"{amount} {label(entry.kind)}: {MEANINGS.get(entry.kind, entry.kind)}"
    who = ", ".join([*identity(entry.holder), command(entry.holder)]).rstrip(", ")
    also = ", ".join(str(co_holder.pid) for co_holder in entry.co_holders)
    word = "or" if entry.sharing == "one" else "also"
    others = f"; {word} by pid {also}" if also else ""
    return f"{amount} held by {who}{_why_left(entry)}{others}"


def _why_left(entry: Entry) -> str:
    """What is wrong with the holder, where something is."""
    if entry.kind == "orphaned":
        whose = "its parent" if entry.charged_pid is None else f"parent {entry.charged_pid}"
        return f" ({whose} is dead)"
    if entry.kind == "exported":
        return " (through an exported handle)"
    job = entry.holder.job if entry.holder else None
    return f" (its launcher, {job.by}, is dead)" if job is not None and job.is_orphan else ""
