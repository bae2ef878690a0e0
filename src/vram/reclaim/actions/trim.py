"""Trim live processes: each releases the memory that it only caches, and continues to work.

Who can be trimmed, and how; the trim itself; and what the driver charges before and after.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vram.errors import (
    NoSuchProcess,
    NotOnGpu,
    Refused,
    TargetDied,
    VramError,
)
from vram.host.ports import Host
from vram.ledger.processes import ProcessMemory, processes
from vram.model.inside import Trimmable, Trimmed, TrimReceipt, Verb
from vram.model.observation import HostFacts
from vram.model.plan import Step, StepKind, Target
from vram.reach.injectors import TrimAnswer, ask_trim, choose_injector
from vram.reach.target_process import died
from vram.reclaim import audit
from vram.reclaim.actions import target_of
from vram.reclaim.device_state import read_ledger, used_bytes
from vram.reclaim.identity import identify, open_verified, require_certain
from vram.units import size

# These can ask without stopping or changing anything; the others are used only to act.
ASKED_BEFOREHAND = ("agent", "jupyter")
ASKING_S = 2.0


class Trim:
    """The action of a plan: asks a process, by the safest injector that is available."""

    kind: StepKind = "trim"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        """Add the injector, and what the frameworks call unused where they can be asked."""
        target = target_of(step)
        _, injector = choose_injector(target, step.via)
        if step.via is not None or injector.NAME not in ASKED_BEFOREHAND:
            return replace(step, via=injector.NAME)
        try:
            answer = ask_process(host, target, "measure", injector.NAME, ASKING_S).answer
        except TargetDied:
            raise
        except VramError:
            return replace(step, via=injector.NAME)
        return replace(step, via=injector.NAME, predicted_bytes=answer.reclaimable_bytes)

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        return _summary(ask_process(host, target_of(step), "trim", step.via, timeout_s).answer)

    def verify(self, host: Host, step: Step) -> bool:
        """It is still there, and was not left stopped. Raises TargetDied where it has ended."""
        target = target_of(step)
        try:
            with open_verified(host, target) as process:
                return process.facts.state not in ("T", "t")
        except NoSuchProcess as error:
            raise died(target.process.pid) from error


def ask_process(
    host: Host,
    target: Target,
    verb: Verb,
    via: str | None,
    deadline_s: float,
    *,
    tracebacks: bool = False,
    collect: bool = False,
) -> TrimAnswer:
    """Run *verb* inside the process that was chosen, and no other. Raises why that was not possible."""
    with open_verified(host, target):
        return ask_trim(target, verb, deadline_s, tracebacks=tracebacks, collect=collect, via=via)


def _summary(answer: Trimmed) -> str:
    freed = [
        f"{line.name} {size(line.returned_bytes)}"
        for line in answer.lines
        if line.memory == "device" and line.returned_bytes
    ]
    said = (f"reported by the process: {', '.join(freed)}") if freed else "it had nothing to release"
    return "; ".join((said, *answer.notes))


def trimmable(host: Host, via: str | None, deadline_s: float) -> tuple[Trimmable, ...]:
    """Every process with GPU memory of its own, largest first, and the injector, or why there is none."""
    known = processes(read_ledger(host, (), deadline_s))
    found = [_describe(host, process, via) for process in known.values() if process.charged]
    return tuple(sorted(found, key=lambda each: (-(each.nbytes or 0), each.pid)))


def _describe(host: Host, process: ProcessMemory, via: str | None) -> Trimmable:
    holder = process.holder
    injector, reason = None, ""
    try:
        injector = choose_injector(identify(host, holder.pid), via)[1].NAME
    except Refused as error:
        reason = str(error)
    return Trimmable(
        pid=holder.pid,
        gpus=process.gpus,
        nbytes=process.charged_bytes or (None if process.has_unknown_size else 0),
        user=holder.user,
        command=holder.command or "",
        via=injector,
        reason=reason,
    )


class TrimOrder(Struct, frozen=True):
    """A process that may be trimmed, and what the driver charged it with.

    ``whole_gpu``: only the GPUs' totals tell whether anything was freed (WSL2), and ``charged`` is that.
    """

    target: Target
    gpus: tuple[int, ...]
    charged: int
    via: str
    whole_gpu: bool = False


def prepare_trims(
    host: Host, pids: Sequence[int], via: str | None, deadline_s: float
) -> tuple[TrimOrder, ...]:
    """Check every one of *pids*: who is refused is refused before anybody is touched."""
    with audit.refusals_logged("trim", pids):
        targets = [identify(host, pid) for pid in dict.fromkeys(pids)]
        ledger = read_ledger(host, (), deadline_s)
        known = processes(ledger)
        orders = [_order(ledger.host, target, known.get(target.process.pid), via) for target in targets]
        return tuple(_measure_whole(host, order) for order in orders)


def _order(me: HostFacts, target: Target, process: ProcessMemory | None, via: str | None) -> TrimOrder:
    pid = target.process.pid
    if process is None or not process.charged:
        raise NotOnGpu(f"pid {pid} holds no GPU memory of its own", hint="`vram who` lists those that do")
    require_certain(me, process)
    _, injector = choose_injector(target, via)
    return TrimOrder(target, process.gpus, process.charged_bytes, injector.NAME)


def _measure_whole(host: Host, order: TrimOrder) -> TrimOrder:
    used = used_bytes(host, order.gpus) if host.facts().wsl_facts is not None else None
    return order if used is None else replace(order, charged=used, whole_gpu=True)


def trim(
    host: Host, order: TrimOrder, deadline_s: float, *, tracebacks: bool = False, collect: bool = False
) -> TrimReceipt:
    """Trim one process; logged before and after, measured by the driver.

    Raises why it was not done, and then the process continues to run; TargetDied where it does not.
    """
    began = host.clock.monotonic()
    record = {"action": "trim", "target": to_builtins(order.target), "via": order.via}
    options = {"tracebacks": tracebacks, "collect": collect}
    token = audit.log_intent({**record, **options, "charged_before": order.charged})
    with audit.failures_logged(token):
        run = ask_process(host, order.target, "trim", order.via, deadline_s, **options)
    took_s = host.clock.monotonic() - began
    after = _charged_now(host, order, deadline_s)
    cost = {"took_s": round(took_s, 6), "stopped_s": run.stopped_s, "waited_s": run.waited_s}
    audit.log_outcome(token, {"status": "done", "charged_after": after, **cost})
    return TrimReceipt(
        target=order.target,
        gpus=order.gpus,
        via=run.via,
        answer=run.answer,
        charged_before=order.charged,
        charged_after=after,
        took_s=took_s,
        stopped_s=run.stopped_s,
        waited_s=run.waited_s,
        whole_gpu=order.whole_gpu,
    )


def _charged_now(host: Host, order: TrimOrder, deadline_s: float) -> int | None:
    """What the driver charges it with now; None where that can no longer be read."""
    if order.whole_gpu:
        return used_bytes(host, order.gpus)
    try:
        process = processes(read_ledger(host, order.gpus, deadline_s)).get(order.target.process.pid)
    except VramError:
        return None
    return process.charged_bytes if process else None
