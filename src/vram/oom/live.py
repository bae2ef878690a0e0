"""A message beside the ledger of the machine it came from: who holds that GPU's memory now.

They are joined only where both are about the same GPU: another machine's processes explain nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from vram.diagnosis import words
from vram.diagnosis.engine import diagnose
from vram.diagnosis.leftover import ghost_code
from vram.ledger.holds import find_holds
from vram.ledger.instances import alone
from vram.ledger.processes import living_holder, living_holders
from vram.model.finding import Finding, Remedy
from vram.model.hold import HeldPart, Hold
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.model.oom import Case, Certainty, GpuMatch, Judgement, OomHolder, OomMessage
from vram.oom import remedies
from vram.oom.judge import NEEDED, judge
from vram.oom.kinds import Kind, capacity, holders
from vram.oom.sums import CONTEXT, MIN_BYTES, say
from vram.units import size

GHOSTS = ("VR101", "VR103", "VR104", "VR105", "VR106", "VR203")
MAX_HOLDINGS = 8
# The driver's total contains what it reserves, CUDA's does not. The rest may differ by a few per cent.
_MIN_SHARE, _MAX_SHARE = 0.95, 1.005


def join(case: Case, ledger: Ledger, findings: Sequence[Finding], *, chosen: bool = False) -> Case:
    """Return *case* with what the ledger says of its GPU; where *chosen*, whatever number the message has."""
    reading = case.message
    gpu, reason = _find_gpu(reading, ledger, chosen=chosen)
    if gpu is None:
        return replace(case, live=GpuMatch(gpu=None, reason=reason))
    if gpu.mig is not None:
        # Findings name GPUs by number: those of one MIG instance are judged from it alone.
        ledger = replace(ledger, gpus=(gpu,))
        findings = diagnose(ledger)
    about = tuple(finding for finding in findings if gpu.index in finding.gpus)
    reading = _with_our_pids(reading, [part.entry for part, _ in _held_on(ledger, gpu)])
    joined = match_gpu(reading, ledger, gpu, reason)
    # Commands are for this machine, where the GPU may have another number than in the message.
    before = judge(replace(reading, gpu=gpu.index))
    before = replace(before, remedies=tuple(_drop_gone(before.remedies, joined.gone)))
    ghosts = [(finding, _bytes_on(gpu, finding)) for finding in about if finding.code in GHOSTS]
    return replace(case, live=joined, judgement=_drop_known(_judge_again(reading, before, joined, ghosts)))


def _find_gpu(reading: OomMessage, ledger: Ledger, *, chosen: bool) -> tuple[GpuLedger | None, str]:
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
    return None, _explain_several(several) if several else _explain_other_machine(reading, known)


def _with_our_pids(reading: OomMessage, entries: Sequence[Entry]) -> OomMessage:
    """The log of a container has its own pids: those that nobody has here, and one container's holder has."""
    here = {pid for entry in entries for pid in _list_pids(entry)}
    found: dict[int, set[int]] = {}
    for holder in (each for entry in entries for each in living_holders(entry)):
        if holder.inner_pid is not None and holder.inner_pid not in here:
            found.setdefault(holder.inner_pid, set()).add(holder.pid)
    ours = {inner: pids.pop() for inner, pids in found.items() if len(pids) == 1}
    others = reading.others and tuple(
        replace(each, pid=ours.get(each.pid, each.pid)) for each in reading.others
    )
    return replace(reading, others=others)


def _visible_gpus(ledger: Ledger) -> Iterator[GpuLedger]:
    """What a program sees as a GPU: under MIG an instance, with memory of its own."""
    for gpu in ledger.gpus:
        if gpu.instances and gpu.mig is None:
            yield from (alone(gpu, each.gpu_instance) for each in gpu.instances)
        else:
            yield gpu


def _matches(reading: OomMessage, gpu: GpuLedger) -> bool:
    if reading.total is None or gpu.total_bytes is None:
        return True
    usable = gpu.total_bytes - known_bytes(gpu.of_kind("reserved"))
    return _MIN_SHARE * usable <= reading.total.nbytes <= _MAX_SHARE * gpu.total_bytes


def _explain_several(gpus: Sequence[GpuLedger]) -> str:
    words = " or ".join(gpu.mig or str(gpu.index) for gpu in gpus)
    return f"the message does not say which GPU, and several match: choose with --gpu {words}"


def _explain_other_machine(reading: OomMessage, known: list[GpuLedger]) -> str:
    if reading.total is None:
        return f"there is no GPU {reading.gpu} here"
    here = ", ".join(f"{_name_gpu(gpu)} has {say(gpu.total_bytes)}" for gpu in known[:4])
    return f"its GPU has {say(reading.total)}, but here {here}: this is another machine"


def _name_gpu(gpu: GpuLedger) -> str:
    return f"GPU {gpu.index}" if gpu.mig is None else f"MIG {gpu.mig}"


def match_gpu(reading: OomMessage, ledger: Ledger, gpu: GpuLedger, reason: str) -> GpuMatch:
    """Who holds *gpu* now, the largest first, and who of those that the message names is gone."""
    pids = {share.pid for share in reading.others or ()}
    held = _held_on(ledger, gpu)
    held.sort(key=lambda each: (-(each[0].entry.nbytes or 0), each[0].line))
    now = {pid for part, _ in held for pid in _list_pids(part.entry)}
    return GpuMatch(
        gpu=gpu.index,
        mig=gpu.mig,
        reason=reason,
        taken_at=ledger.taken_at,
        total=gpu.total_bytes,
        free=known_bytes(gpu.of_kind("free")),
        holdings=tuple(_describe_holding(part.entry, hold, pids) for part, hold in held[:MAX_HOLDINGS]),
        gone=tuple(sorted(pids - now)),
    )


def _held_on(ledger: Ledger, gpu: GpuLedger) -> list[tuple[HeldPart, Hold]]:
    # Who is charged with nothing that could be counted is there nevertheless.
    holds = find_holds(ledger, empty=True)
    return [(part, hold) for hold in holds for part in hold.parts if part.gpu == gpu.index]


def _list_pids(entry: Entry) -> tuple[int, ...]:
    """Its holders, and the pid that the driver charges; not a newcomer that was given a dead pid's number."""
    if entry.holder is not None and entry.holder.alive and living_holder(entry) is None:
        return tuple(holder.pid for holder in living_holders(entry))
    charged = (entry.charged_pid,) if entry.charged_pid is not None else ()
    return (*(holder.pid for holder in entry.holders), *charged)


def _describe_holding(entry: Entry, hold: Hold, named: set[int]) -> OomHolder:
    holder = entry.holder
    if holder is not None and holder.alive:
        holder = living_holder(entry)
    return OomHolder(
        pid=holder.pid if holder else entry.charged_pid,
        nbytes=entry.nbytes,
        what=entry.kind,
        who=words.process(holder) if holder else "an unknown process",
        named=not named.isdisjoint(_list_pids(entry)),
        finding=ghost_code(entry) if hold.what == "ghost" else None,
    )


def _bytes_on(gpu: GpuLedger, finding: Finding) -> int:
    """What a finding is about on *gpu* alone: one holder may have memory on several."""
    return sum(nbytes for hold in finding.holds for at, nbytes in hold.bytes_by_gpu if at == gpu.index)


def _judge_again(
    reading: OomMessage, before: Judgement, joined: GpuMatch, ghosts: Sequence[tuple[Finding, int]]
) -> Judgement:
    """Judge once more, now that holders have names: only where others are, or may be, the cause."""
    if before.kind not in ("unknown", "other-process", "ghost", "context"):
        return before
    kept = sum(nbytes for _, nbytes in ghosts)
    needed = _estimate_needed(reading, joined)
    full = joined.free is not None and joined.free < needed
    # Where the message does not say that the GPU was full, it must be so now.
    if ghosts and kept >= needed and (full or reading.free is not None):
        return _judge_ghost(before, ghosts, kept, free_known=reading.free is not None)
    others = sum(holding.nbytes or 0 for holding in joined.holdings)
    if before.kind == "unknown" and reading.asked and _is_too_much(reading, joined):
        return _judge_too_large(before, reading, joined)
    if before.kind in ("unknown", "context") and full and others >= needed:
        return _judge_held(before, joined, others, reading)
    return before


def _drop_gone(advice: Sequence[Remedy], gone: Sequence[int]) -> Iterator[Remedy]:
    """Drop pids that hold nothing here now from `vram kill`: another program may have that pid."""
    for remedy in advice:
        if remedy.step == "end":
            yield from remedies.end([pid for pid in remedy.pids if pid not in gone])
        else:
            yield remedy


def _drop_known(judgement: Judgement) -> Judgement:
    """What was just read is neither missing nor advised."""
    missing = tuple(words for words in judgement.missing if words != NEEDED["total"])
    advice = tuple(remedy for remedy in judgement.remedies if remedy != remedies.JOIN_LIVE)
    return replace(judgement, missing=missing, remedies=advice)


def _estimate_needed(reading: OomMessage, joined: GpuMatch) -> int:
    if reading.asked is None:  # a request that fails with more than this free was large
        return max(CONTEXT, (joined.total or 0) // 50)
    missing = reading.asked.nbytes - (reading.free.nbytes if reading.free else 0)
    return max(MIN_BYTES, missing)


def _is_too_much(reading: OomMessage, joined: GpuMatch) -> bool:
    asked = reading.asked.nbytes if reading.asked else 0
    return joined.total is not None and asked + (reading.live.nbytes if reading.live else 0) > joined.total


def _judge_ghost(
    before: Judgement, ghosts: Sequence[tuple[Finding, int]], kept: int, *, free_known: bool
) -> Judgement:
    largest, _ = max(ghosts, key=lambda each: each[1])
    advice = tuple(remedy for finding, nbytes in ghosts if nbytes for remedy in finding.remedies)
    return _replace_judgement(
        before,
        holders.ghost,
        "fact" if free_known and before.kind != "unknown" else "likely",
        f"{size(kept)} on this GPU is held by processes that no process list shows: {largest.title}"
        f" ({largest.code}). {largest.cause}",
        remedies.ordered((*advice, *before.remedies)),
    )


def _judge_too_large(before: Judgement, reading: OomMessage, joined: GpuMatch) -> Judgement:
    cause = (
        f"It requested {say(reading.asked)} with {say(reading.live or 0)} already in use; this GPU has"
        f" {say(joined.total)}."
    )
    advice = remedies.use_less(reading, joined.total)
    return _replace_judgement(before, capacity.too_large, "likely", cause, advice)


def _judge_held(before: Judgement, joined: GpuMatch, others: int, reading: OomMessage) -> Judgement:
    largest = joined.holdings[0]
    here = replace(reading, gpu=joined.gpu)
    return _replace_judgement(
        before,
        holders.other_process,
        "likely",
        f"Now {size(others)} of this GPU is held and {say(joined.free)} is free. The largest"
        f" holder is {largest.who} with {size(largest.nbytes or 0)}. If the program that failed has"
        " exited, these are other programs.",
        remedies.ordered((remedies.run_why(here), remedies.make_room(here))),
    )


def _replace_judgement(
    before: Judgement, kind: Kind, certainty: Certainty, cause: str, advice: tuple[Remedy, ...]
) -> Judgement:
    """The arithmetic stays: it is the message's."""
    found = kind.conclude(certainty, cause, workings=before.workings, remedies=advice)
    return replace(found, balance=before.balance)
