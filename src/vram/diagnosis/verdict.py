"""Is this GPU clean? What is held on it beyond what the driver reserves, for scripts that ask.

A *leftover* is what no healthy process accounts for: bytes that are orphaned, exported or
charged to a process that is dead, stopped or exiting, and bytes without a known
holder. A stopped process counts, because its memory is not in use and no job ends that way;
one that merely waits for a disk does not, and neither does one whose program file was
replaced. Where several processes have bytes together, and only some of them are healthy, the
answer is "unknown". Whether a hidden holder is healthy cannot be seen, so hidden bytes make the
answer "unknown"; those of a process that worked when it was listed and ended a moment later do not.
The driver's reserve for managed memory is held by no process, where that is a fact; where it is only
likely the answer is "unknown".
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.ledger.holds import by_gpu, find_holds
from vram.ledger.processes import in_use, is_stopped
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.model.observation import ProbeRun
from vram.units import size

Verdict = Literal["clean", "held", "unknown"]

_UNREAD = ("failed", "timeout", "lost", "denied")


class GpuVerdict(Struct, frozen=True, kw_only=True):
    """One GPU's answer, with the entries that led to it."""

    index: int
    uuid: str | None
    name: str
    verdict: Verdict
    held_bytes: int | None
    entries: tuple[Entry, ...] = ()
    reason: str | None = None
    mig: str | None = None
    """Set where this is the answer for one MIG instance: its first device, as "0:1"."""


def judge(
    ledger: Ledger, *, leftovers: bool = False, orphans: bool = False, allow: int = 0
) -> tuple[GpuVerdict, ...]:
    """Return a verdict for every GPU; up to *allow* bytes on each are let pass.

    With *leftovers* these are counted alone, and with *orphans* what a job holds whose launcher is dead, too.
    """
    held = by_gpu(find_holds(ledger))
    return tuple(
        _judge(gpu, [part.entry for part in held.get(at, [])], leftovers, orphans, allow)
        for at, gpu in enumerate(ledger.gpus)
    )


def overall(verdicts: tuple[GpuVerdict, ...]) -> Verdict:
    """Held anywhere is held. No GPU at all is not clean: nothing was looked at."""
    found = {verdict.verdict for verdict in verdicts}
    if "held" in found:
        return "held"
    return "clean" if found == {"clean"} else "unknown"


def is_missing(gpu: GpuLedger) -> bool:
    """Whether a GPU's memory could not be read, or no process on it can be named."""
    # Under MIG the whole GPU may be withheld from us while all its instances are reported.
    totals = [instance.total_bytes for instance in gpu.instances]
    unread = gpu.total_bytes is None and (not totals or None in totals)
    unlisted = gpu.status == "denied" and not gpu.instances
    return unread or unlisted or gpu.status in ("failed", "timeout", "lost")


def without_driver(ledger: Ledger) -> ProbeRun | None:
    """How the driver's probe went where there is no driver at all; one that hangs or fails is there."""
    if ledger.gpus or (ledger.driver is not None and ledger.driver.driver_version is not None):
        return None
    nvml = (probe for probe in ledger.probes if probe.name == "nvml" and probe.status == "unsupported")
    return next(nvml, None)


def _judge(gpu: GpuLedger, held: list[Entry], leftovers: bool, orphans: bool, allow: int) -> GpuVerdict:
    # Those whose bytes are in an entry of several.
    unsized = [entry for entry in held if entry.holder and entry.nbytes is None]
    counted = tuple(
        entry
        for entry in held
        if entry.nbytes
        and (not leftovers or _is_left(gpu, entry, unsized) or (orphans and _is_orphans(entry)))
    )
    nbytes = known_bytes(counted)
    verdict: Verdict = "held" if nbytes > allow else "clean"
    reason = None
    if verdict == "clean":
        reason = _doubt(gpu, held, unsized, leftovers, allow - nbytes)
        verdict = "unknown" if reason else "clean"
    return GpuVerdict(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        verdict=verdict,
        held_bytes=None if gpu.total_bytes is None and not counted else nbytes,
        entries=counted,
        reason=reason,
        mig=gpu.mig,
    )


def _is_leftover(entry: Entry) -> bool:
    leftover = entry.kind_facts.leftover
    if leftover in ("no", "unknown") or entry.sharing == "together":
        return False
    if leftover == "yes" or entry.holder is None:
        return True
    holder = entry.holder
    return not holder.alive or holder.exiting or holder.state in ("Z", "X") or is_stopped(holder)


def _is_orphans(entry: Entry) -> bool:
    holder = entry.holder
    return in_use(entry) and holder is not None and holder.job is not None and holder.job.is_orphan


def _is_left(gpu: GpuLedger, entry: Entry, unsized: list[Entry]) -> bool:
    if entry.sharing == "together":
        return all(map(_is_leftover, unsized))
    # Where the driver's process lists could not be read, only they could have named a holder.
    is_unlisted = entry.kind == "unattributed" and gpu.status in _UNREAD
    return _is_leftover(entry) and not is_unlisted


def _is_unseen(entry: Entry) -> bool:
    """Whether the holder cannot be seen, and whether it still works with the bytes cannot be told."""
    return entry.kind_facts.held and entry.kind_facts.leftover == "unknown" and entry.hidden_by != "end"


def _doubt(
    gpu: GpuLedger, held: list[Entry], unsized: list[Entry], leftovers: bool, allow: int
) -> str | None:
    """Say why a GPU that looks clean may not be."""
    if gpu.total_bytes is None and gpu.instances:
        return "its MIG instances are clean; no permission to read the GPU as a whole"
    if gpu.total_bytes is None or gpu.status in _UNREAD:
        return gpu.message or f"reading the GPU: {gpu.status}"
    if known_bytes(gpu.of_kind("unreported")) > allow:
        return "no visible process holds memory, and the driver does not report how much is in use"
    reserve = known_bytes(entry for entry in gpu.of_kind("preallocated") if entry.confidence != "fact")
    if reserve > allow:
        return f"{size(reserve)} is likely the driver's reserve for managed memory, but that is not certain"
    if leftovers and known_bytes(filter(_is_unseen, held)) > allow:
        return "a process that is not visible from here holds memory; whether it is healthy is unknown"
    together = known_bytes(entry for entry in held if entry.sharing == "together")
    if leftovers and together > allow and any(map(_is_leftover, unsized)):
        return "several processes share this memory and not all are healthy; whose it is is unknown"
    return None
