"""Ask live processes what of their memory is live, what only cached, and which arrays they have.

Nothing is changed by asking, and each process continues meanwhile. Where all of them are asked, that is a few
at a time, within one deadline; who cannot be asked is counted, by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vram.errors import (
    CallsGivenUp,
    NoSuchProcess,
    NotOnGpu,
    NotPermitted,
    Protected,
    TargetDied,
    TimedOut,
    VramError,
    WorldChanged,
)
from vram.host.ports import Host
from vram.ledger.deepen import Measured, gpus_of, splits
from vram.ledger.holds import on_each_gpu
from vram.ledger.processes import processes
from vram.model.inside import MAX_GROUPS, Inside, InsideReceipt
from vram.model.ledger import GpuLedger, Ledger, Note
from vram.model.plan import Target
from vram.reach import payload
from vram.reach.injectors import ask, ask_trim, choose_injector
from vram.reach.payload import PayloadAnswer
from vram.reclaim import audit
from vram.reclaim.actions.trim import ask_process
from vram.reclaim.identity import identify, open_verified
from vram.units import counted, interruption

AT_ONCE = 4
EACH_S = 2.0
# A user who types this in a notebook wants to see that notebook, which runs us and so is never acted on.
# These ways ask what it offers itself.
OFFERED = ("agent", "jupyter")

_REASONS: tuple[tuple[type[VramError], str], ...] = (
    (CallsGivenUp, "has given up system calls (seccomp)"),
    (TargetDied, "ended while vram was in it"),
    (NotPermitted, "belongs to another user (root may query it)"),
    (Protected, "is part of the system"),
    (TimedOut, "did not answer in time"),
    (NoSuchProcess, "has exited"),
    (WorldChanged, "has exited"),
)
UNREACHABLE = "cannot be reached (`vram inside PID` says why)"
NO_TIME = "was not queried: time was up (raise --deadline)"


class Measurements(Struct, frozen=True):
    """Who answered what; and of the others, by pid, why not."""

    answers: dict[int, Measured]
    unasked: dict[int, str]
    died: tuple[int, ...] = ()
    """Those of them that ended while vram was in them."""


def measure_all(host: Host, pids: Iterable[int], deadline_s: float) -> Measurements:
    """Ask each of *pids*, as far as the time goes."""
    until = host.clock.monotonic() + deadline_s
    answers: dict[int, Measured] = {}
    unasked: dict[int, str] = {}
    died: list[int] = []

    def ask(pid: int) -> None:
        left_s = until - host.clock.monotonic()
        if left_s <= 0:
            unasked[pid] = NO_TIME
            return
        try:
            answers[pid] = _measure(host, pid, min(max(EACH_S, deadline_s / AT_ONCE), left_s))
        except VramError as error:
            unasked[pid] = _reason(error)
            if isinstance(error, TargetDied):
                died.append(pid)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vram-measure") as pool:
        list(pool.map(ask, dict.fromkeys(pids)))
    return Measurements(answers, unasked, tuple(sorted(died)))


def charged_pids(ledger: Ledger) -> list[int]:
    """Every living process whose memory is reported as a whole only."""
    return [
        process.pid
        for process in processes(ledger).values()
        if any(entry.kind == "process" for entry in process.charged)
    ]


def measure_one(host: Host, pid: int, deadline_s: float) -> tuple[dict[int, Measured], tuple[str, ...]]:
    """What *pid* answers, and otherwise why it does not."""
    try:
        found = _measure(host, pid, deadline_s)
        cost = f"queried: {interruption(found.stopped_s, found.waited_s)}"
        arrays = () if found.via == "native" else (f"`vram inside {pid}` lists its arrays",)
        return {pid: found}, (cost, *arrays)
    except TargetDied:
        raise
    except VramError as error:
        return {}, (f"its contents are unknown: {error}",)


def noted(ledger: Ledger, measured: Measurements) -> Ledger:
    """Return *ledger* with notes on each GPU: what the question cost the processes, and who was not asked."""
    charged = on_each_gpu(ledger, lambda entry: entry.kind == "process", empty=True)
    gpus = tuple(_add_notes(gpu, {hold.pid for hold in holds}, measured) for gpu, holds in charged)
    return replace(ledger, gpus=gpus)


def _add_notes(gpu: GpuLedger, there: Collection[int | None], measured: Measurements) -> GpuLedger:
    answered = [found for pid, found in measured.answers.items() if pid in there]
    reasons = Counter(reason for pid, reason in measured.unasked.items() if pid in there)
    notes = [_cost(answered)] if answered else []
    if reasons:
        told = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        text = f"{counted(reasons.total(), 'process')} not split into live and cached: {told}"
        notes.append(Note("not-divided", text))
    return replace(gpu, notes=(*gpu.notes, *notes))


def _cost(answered: list[Measured]) -> Note:
    """The most that the question cost any of them."""
    stopped_s = max((each.stopped_s for each in answered if each.stopped_s is not None), default=None)
    waited_s = max((each.waited_s for each in answered if each.waited_s is not None), default=None)
    text = f"{counted(len(answered), 'process')} queried: {interruption(stopped_s, waited_s)}"
    return Note("queried", text, stopped_s, waited_s)


def _measure(host: Host, pid: int, deadline_s: float) -> Measured:
    if pid in host.signals.self_and_ancestors():
        target, via = offered(host, pid)
        visit = ask_trim(target, "measure", deadline_s, via=via)
    else:
        visit = ask_process(host, identify(host, pid), "measure", None, deadline_s)
    return Measured(visit.via, visit.answer, visit.stopped_s, visit.waited_s)


def offered(host: Host, pid: int) -> tuple[Target, str]:
    """A process that runs us, and the way that it offers itself; raises where there is none.

    Both ways are bound to pid and start time.
    """
    seen = host.proc.facts(pid)
    if seen is not None and seen[1].uid == host.facts().uid:
        process, facts = seen
        target = Target(
            process=process,
            uid=host.facts().uid,
            user=facts.user,
            command=" ".join(facts.argv) or facts.command,
            executable=facts.executable,
        )
        for via in OFFERED:
            with suppress(VramError):
                choose_injector(target, via)
                return target, via
    raise Protected(
        f"pid {pid} runs this command and cannot be queried",
        hint="only a Jupyter kernel, or a program that called vram.agent(), can query itself",
    )


def _reason(error: VramError) -> str:
    for kind, words in _REASONS:
        if isinstance(error, kind):
            return words
    return UNREACHABLE


# Of the time given, for the way in and back.
SHARE = 0.9


def look_inside(
    host: Host, ledger: Ledger, pid: int, via: str | None, deadline_s: float, min_nbytes: int = 0
) -> InsideReceipt:
    """What *pid* answers; raises why it could not be asked, and then it was left alone."""
    runs_us = pid in host.signals.self_and_ancestors()
    target, offer = offered(host, pid) if runs_us else (identify(host, pid), None)
    if pid not in processes(ledger):
        raise NotOnGpu(f"pid {pid} holds no GPU memory", hint="`vram who` lists those that do")
    began = host.clock.monotonic()
    if runs_us and via not in (None, offer):
        raise Protected(
            f"pid {pid} runs this command: it can only be queried by {offer}", hint="leave out --via"
        )
    _, way = choose_injector(target, offer if runs_us else via, "inside")
    told = _ask_inside(host, target, way.NAME, deadline_s, min_nbytes, runs_us=runs_us)
    answer = decoded(pid, told.body)
    gpu_of = gpus_of(ledger, pid, answer)
    return InsideReceipt(
        target=target,
        via=told.via,
        stopped_s=told.stopped_s,
        waited_s=told.waited_s,
        took_s=host.clock.monotonic() - began,
        answer=answer,
        gpu_of=gpu_of,
        splits=tuple(splits(ledger, pid, answer, gpu_of)),
    )


def decoded(pid: int, body: bytes) -> Inside:
    return payload.decoded(pid, body, Inside)


def _ask_inside(
    host: Host, target: Target, via: str, deadline_s: float, min_nbytes: int, *, runs_us: bool
) -> PayloadAnswer:
    fields = {"limit_s": deadline_s * SHARE, "most": MAX_GROUPS, "min_nbytes": min_nbytes}
    foreign = target.uid != host.facts().uid
    # Nothing is changed by asking. Where root asks another user's process, that is written down.
    record = {"action": "inside", "target": msgspec.to_builtins(target), "via": via}
    tokens = [audit.log_intent(record)] if foreign else []
    with audit.failures_logged(*tokens), nullcontext() if runs_us else open_verified(host, target):
        answer = ask(target, "inside", fields, deadline_s, via=via)
    for token in tokens:
        audit.log_outcome(token, {"status": "done"})
    return answer


def only(receipt: InsideReceipt, gpus: set[int] | None, min_nbytes: int) -> InsideReceipt:
    """Return *receipt* with only the arrays on *gpus* (None: on all) that are large enough."""
    answer = receipt.answer
    kept = tuple(
        group
        for group in answer.groups
        if group.each_nbytes >= min_nbytes
        and (gpus is None or group.device is None or receipt.gpu_of.get(group.device) in gpus)
    )
    splits = tuple(split for split in receipt.splits if gpus is None or split.gpu in gpus)
    return replace(receipt, answer=replace(answer, groups=kept), splits=splits)
