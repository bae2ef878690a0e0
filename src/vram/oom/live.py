"""A message beside the ledger of the machine it came from: who holds that GPU's memory now.

They are joined only where both are about the same GPU: another machine's processes explain nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from vram.diagnosis import words
from vram.diagnosis.engine import diagnose
from vram.ledger.mig import alone
from vram.ledger.processes import living_holder, living_holders
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.model.oom import Case, GpuMatch, Judgement, OomHolder, OomReading
from vram.oom import remedies
from vram.oom.judge import NEEDED, judge
from vram.oom.sums import CONTEXT, MIN_BYTES, said
from vram.units import size

GHOSTS = ("VR101", "VR103", "VR104", "VR105", "VR106", "VR203")
MAX_HOLDINGS = 8
# The driver's total contains what it reserves, CUDA's does not: up to a few per cent apart.
_MIN_SHARE, _MAX_SHARE = 0.95, 1.005


def join(case: Case, ledger: Ledger, findings: Sequence[Finding], *, chosen: bool = False) -> Case:
    """Return *case* with what the ledger says of its GPU; where *chosen*, whatever number the message has."""
    gpu, reason = _same_gpu(case.reading, ledger, chosen=chosen)
    if gpu is None:
        return replace(case, live=GpuMatch(gpu=None, reason=reason))
    about = _findings_of(gpu, ledger, findings)
    joined = _joined(case.reading, gpu, about, reason, ledger.taken_at)
    # Commands are for this machine, where the GPU may have another number than in the message.
    before = judge(replace(case.reading, gpu=gpu.index))
    before = replace(before, remedies=tuple(_without_gone(before.remedies, joined.gone)))
    ghosts = [(finding, _bytes_on(gpu, finding)) for finding in about if finding.code in GHOSTS]
    return replace(case, live=joined, judgement=_without_known(_again(case.reading, before, joined, ghosts)))


def _same_gpu(reading: OomReading, ledger: Ledger, *, chosen: bool) -> tuple[GpuLedger | None, str]:
    """The GPU that the message is about, or why it is none of these."""
    if reading.where not in ("device", "bar1"):
        return None, "the message is not about GPU memory"
    known = [gpu for gpu in _visible_gpus(ledger) if gpu.total_bytes is not None]
    if not known:
        return None, "no GPU answers on this machine"
    alike = [gpu for gpu in known if _matches(reading, gpu)]
    numbered = [gpu for gpu in alike if chosen or gpu.mig or reading.gpu in (None, gpu.index)]
    if len(numbered) == 1:
        return numbered[0], "" if reading.total or chosen else "the message does not say how large its GPU is"
    if not numbered and reading.total and len(alike) == 1:
        return alike[0], f"called GPU {reading.gpu} there (CUDA_VISIBLE_DEVICES renumbers)"
    several = numbered or (alike if reading.total else [])
    return None, _several(several) if several else _another_machine(reading, known)


def _visible_gpus(ledger: Ledger) -> Iterator[GpuLedger]:
    """What a program sees as a GPU: under MIG an instance, with memory of its own."""
    for gpu in ledger.gpus:
        if gpu.instances and gpu.mig is None:
            yield from (alone(gpu, each.gpu_instance) for each in gpu.instances)
        else:
            yield gpu


def _matches(reading: OomReading, gpu: GpuLedger) -> bool:
    if reading.total is None or gpu.total_bytes is None:
        return True
    share = reading.total.nbytes / gpu.total_bytes if gpu.total_bytes else 0
    return _MIN_SHARE <= share <= _MAX_SHARE


def _several(gpus: Sequence[GpuLedger]) -> str:
    words = " or ".join(gpu.mig or str(gpu.index) for gpu in gpus)
    return f"the message does not say which GPU, and several match: choose with --gpu {words}"


def _another_machine(reading: OomReading, known: list[GpuLedger]) -> str:
    if reading.total is None:
        return f"there is no GPU {reading.gpu} here"
    here = ", ".join(f"{_label(gpu)} has {said(gpu.total_bytes)}" for gpu in known[:4])
    return f"its GPU has {said(reading.total)}, but here {here}: this is another machine"


def _label(gpu: GpuLedger) -> str:
    return f"GPU {gpu.index}" if gpu.mig is None else f"MIG {gpu.mig}"


def _findings_of(gpu: GpuLedger, ledger: Ledger, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings about *gpu*. They name GPUs by number: those of one MIG instance are judged from it alone."""
    if gpu.mig is not None:
        findings = diagnose(replace(ledger, gpus=(gpu,)))
    return tuple(finding for finding in findings if gpu.index in finding.gpus)


def _joined(
    reading: OomReading, gpu: GpuLedger, findings: Sequence[Finding], reason: str, taken_at: str
) -> GpuMatch:
    pids = {share.pid for share in reading.others or ()}
    held = sorted(
        (entry for entry in gpu.entries if entry.kind_facts.held), key=lambda entry: -(entry.nbytes or 0)
    )
    now = {pid for entry in held for pid in _pids(entry)}
    return GpuMatch(
        gpu=gpu.index,
        mig=gpu.mig,
        reason=reason,
        taken_at=taken_at,
        total=gpu.total_bytes,
        free=known_bytes(entry for entry in gpu.entries if entry.kind == "free"),
        holdings=tuple(_holding(entry, pids, findings) for entry in held[:MAX_HOLDINGS]),
        gone=tuple(sorted(pids - now)),
    )


def _pids(entry: Entry) -> tuple[int, ...]:
    """Its holders, and the pid that the driver charges; not a newcomer that was given a dead pid's number."""
    if entry.holder is not None and entry.holder.alive and living_holder(entry) is None:
        return tuple(holder.pid for holder in living_holders(entry))
    charged = (entry.charged_pid,) if entry.charged_pid is not None else ()
    return (*(holder.pid for holder in entry.holders), *charged)


def _holding(entry: Entry, named: set[int], findings: Sequence[Finding]) -> OomHolder:
    pids = _pids(entry)
    codes = [finding.code for finding in findings if finding.code in GHOSTS and set(finding.pids) & set(pids)]
    holder = entry.holder
    if holder is not None and holder.alive:
        holder = living_holder(entry)
    return OomHolder(
        pid=holder.pid if holder else entry.charged_pid,
        nbytes=entry.nbytes,
        what=entry.kind,
        who=words.process(holder) if holder else "an unknown process",
        named=bool(named & set(pids)),
        finding=codes[0] if codes else None,
    )


def _bytes_on(gpu: GpuLedger, finding: Finding) -> int:
    """What a finding is about on *gpu* alone: one holder may have memory on several."""
    if len(finding.gpus) == 1:
        return finding.nbytes or 0
    left = (entry for entry in gpu.entries if entry.kind_facts.leftover == "yes")
    here = known_bytes(entry for entry in left if set(_pids(entry)) & set(finding.pids))
    return min(here, finding.nbytes or 0)


def _again(
    reading: OomReading, before: Judgement, joined: GpuMatch, ghosts: Sequence[tuple[Finding, int]]
) -> Judgement:
    """Judge once more, now that holders have names: only where others are, or may be, the cause."""
    if before.kind not in ("unknown", "other-process", "ghost", "context"):
        return before
    kept = sum(nbytes for _, nbytes in ghosts)
    needed = _needed(reading, joined)
    full = joined.free is not None and joined.free < needed
    # Where the message does not say that the GPU was full, it must be so now.
    if ghosts and kept >= needed and (full or reading.free is not None):
        return _ghost(before, ghosts, kept, free_known=reading.free is not None)
    others = sum(holding.nbytes or 0 for holding in joined.holdings)
    if before.kind == "unknown" and reading.asked and _too_much(reading, joined):
        return _too_large(before, reading, joined)
    if before.kind in ("unknown", "context") and full and others >= needed:
        return _held(before, joined, others, reading)
    return before


def _without_gone(advice: Sequence[Remedy], gone: Sequence[int]) -> Iterator[Remedy]:
    """Drop pids that hold nothing here now from `vram kill`: another program may have that pid."""
    for remedy in advice:
        if remedy.step == "end":
            yield from remedies.end([pid for pid in remedy.pids if pid not in gone])
        else:
            yield remedy


def _without_known(judgement: Judgement) -> Judgement:
    """What was just read is neither missing nor advised."""
    missing = tuple(words for words in judgement.missing if words != NEEDED["total"])
    advice = tuple(remedy for remedy in judgement.remedies if not remedy.command.startswith(remedies.JOIN))
    return replace(judgement, missing=missing, remedies=advice)


def _needed(reading: OomReading, joined: GpuMatch) -> int:
    if reading.asked is None:  # a request that fails with more than this free was large
        return max(CONTEXT, (joined.total or 0) // 50)
    missing = reading.asked.nbytes - (reading.free.nbytes if reading.free else 0)
    return max(MIN_BYTES, missing)


def _too_much(reading: OomReading, joined: GpuMatch) -> bool:
    asked = reading.asked.nbytes if reading.asked else 0
    return joined.total is not None and asked + (reading.live.nbytes if reading.live else 0) > joined.total


def _ghost(
    before: Judgement, ghosts: Sequence[tuple[Finding, int]], kept: int, *, free_known: bool
) -> Judgement:
    largest, _ = max(ghosts, key=lambda each: each[1])
    advice = tuple(remedy for finding, nbytes in ghosts if nbytes for remedy in finding.remedies)
    return replace(
        before,
        kind="ghost",
        certainty="fact" if free_known and before.kind != "unknown" else "likely",
        title="held by an unlisted process",
        cause=f"{size(kept)} on this GPU is held by processes that no process list shows: {largest.title}"
        f" ({largest.code}). {largest.cause}",
        missing=(),
        remedies=remedies.ordered((*advice, *before.remedies)),
    )


def _too_large(before: Judgement, reading: OomReading, joined: GpuMatch) -> Judgement:
    cause = (
        f"It requested {said(reading.asked)} with {said(reading.live or 0)} already in use; this GPU has"
        f" {said(joined.total)}."
    )
    advice = remedies.use_less(reading, joined.total)
    return replace(
        before,
        kind="too-large",
        certainty="likely",
        title="too large for the GPU",
        cause=cause,
        missing=(),
        remedies=advice,
    )


def _held(before: Judgement, joined: GpuMatch, others: int, reading: OomReading) -> Judgement:
    largest = joined.holdings[0]
    here = replace(reading, gpu=joined.gpu)
    return replace(
        before,
        kind="other-process",
        certainty="likely",
        title="held by another process",
        cause=f"Now {size(others)} of this GPU is held and {said(joined.free)} is free. The largest"
        f" holder is {largest.who} with {size(largest.nbytes or 0)}. If the program that failed has"
        " exited, these are other programs.",
        missing=(),
        remedies=remedies.ordered((remedies.run_why(here), remedies.make_room(here))),
    )
