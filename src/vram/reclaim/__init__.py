"""Free memory with the least harm, and prove it by reading the device again.

    draft = vram.reclaim.plan("20GiB", gpus=(0,))
    receipt = vram.reclaim.execute(draft.plan)

``plan`` only reads. ``execute`` refuses where the machine is no longer what the plan was made for,
writes every step to the audit log before and after, and stops when the goal is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.plan import Draft, Outcome, Plan, PlanRequest, Receipt, Skipped, StepKind

__all__ = ["execute", "plan", "remaining"]

DEADLINE_S = 5.0


def plan(
    available: int | str | None = None,
    *,
    more: int | str | None = None,
    gpus: tuple[int, ...] = (),
    up_to: StepKind | None = None,
    only: StepKind | None = None,
    findings: tuple[str, ...] = (),
    pids: tuple[int, ...] = (),
    caches: bool = False,
    release: bool = False,
    park_idle: bool = False,
    alone: bool = False,
    tree: bool = False,
    job: bool = False,
    orphans: bool = False,
    host: Host | None = None,
    deadline_s: float = DEADLINE_S,
) -> Draft:
    """Read the machine and return what would be done; nothing is touched.

    *available* is what should be available on one GPU afterwards, as "20GiB" or ``20 * vram.GiB``; *more*
    is what should be freed there, however much is available already. Without
    either, all leftovers are planned, with *caches* those of live processes too, and with *release* what
    servers release when they are asked. See
    :class:`vram.model.plan.PlanRequest`.
    """
    from vram.model.plan import PlanRequest
    from vram.units import read_size

    request = PlanRequest(
        available_bytes=None if available is None else read_size(available, "available"),
        goal_bytes=None if more is None else read_size(more, "more"),
        gpus=gpus,
        up_to=up_to,
        only=only,
        findings=findings,
        pids=pids,
        caches=caches,
        release=release,
        park_idle=park_idle,
        alone=alone,
        tree=tree,
        job=job,
        orphans=orphans,
    )
    return plan_request(request, host=host, deadline_s=deadline_s)


def plan_request(request: PlanRequest, *, host: Host | None = None, deadline_s: float = DEADLINE_S) -> Draft:
    """As :func:`plan`, for a request whose sizes are bytes already."""
    from vram.reclaim.device_state import are_ending, read_and_diagnose
    from vram.reclaim.planner import plan as make

    host = host or _local()
    ledger, findings = read_and_diagnose(host, request.gpus, deadline_s)
    # Another vram may be ending them at this moment: their memory is neither theirs any more nor free.
    for pause_s in _UNTIL_ENDED_S:
        if not are_ending(host, ledger):
            break
        host.clock.sleep(pause_s)
        ledger, findings = read_and_diagnose(host, request.gpus, deadline_s)
    return make(host, ledger, findings, request)


_UNTIL_ENDED_S = 0.05, 0.2


def execute(
    plan: Plan,
    *,
    host: Host | None = None,
    deadline_s: float = DEADLINE_S,
    patience_s: Mapping[StepKind, float] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
    together: bool = False,
    whole: bool = False,
) -> Receipt:
    """Do exactly *plan*, if it is still valid; return asked, promised and returned.

    *together* ends all processes of a plan of kills without a goal at once, as it is done with a whole job;
    with *whole*, none where one of them has ended, is another now, or must not be touched.

    *patience_s* says how long a step of each kind may take. *on_outcome* is called with every outcome.
    Raises WorldChanged where the plan is no longer valid, having touched nothing.
    """
    from vram.reclaim import executor
    from vram.reclaim.actions import TIMEOUT_S
    from vram.reclaim.candidates import ORPHAN
    from vram.reclaim.device_state import missing_bytes, read_and_diagnose, used_in
    from vram.reclaim.executor import second_look_s
    from vram.reclaim.state import parked

    host = host or _local()
    paused = {each.pid for each in parked(host)}
    # A job may have got a member on a GPU that it was not on.
    gpus = () if any(step.finding == ORPHAN for step in plan.steps) else plan.gpus
    ledger, findings = read_and_diagnose(host, gpus, deadline_s)
    executor.revalidate(plan, ledger, findings, paused)
    if wait_s := second_look_s(plan, ledger, host.clock.now()):
        host.clock.sleep(wait_s)
        ledger, findings = read_and_diagnose(host, gpus, deadline_s)
        executor.revalidate(plan, ledger, findings, paused)
    return executor.execute(
        host,
        plan,
        timeout_s={**TIMEOUT_S, **(patience_s or {})},
        on_outcome=on_outcome,
        used_now=used_in(ledger, plan.gpus),
        goal_now=missing_bytes(ledger, plan),
        together=together,
        whole=whole,
    )


def ends_orphans_alone(plan: Plan) -> bool:
    """Whether *plan* only ends orphans. They are ended at once: one that is stuck keeps no other."""
    from vram.reclaim.candidates import ORPHAN

    return plan.goal_bytes is None and all(
        step.kind == "kill" and step.finding == ORPHAN for step in plan.steps
    )


def remaining(
    plan: Plan, findings: tuple[str, ...] = (), *, host: Host | None = None, deadline_s: float = DEADLINE_S
) -> tuple[Skipped, ...]:
    """Read again after *plan* was run: the leftovers that are still there on its GPUs."""
    from vram.model.plan import PlanRequest
    from vram.reclaim.candidates import PlanContext
    from vram.reclaim.device_state import read_and_diagnose
    from vram.reclaim.skipped import leftovers_left

    host = host or _local()
    ledger, found = read_and_diagnose(host, plan.gpus, deadline_s)
    codes = tuple(code.strip().upper() for code in findings)
    return leftovers_left(PlanContext.of(ledger, found, PlanRequest(gpus=plan.gpus, findings=codes)))


def _local() -> Host:
    from vram.host.local import LocalHost

    return LocalHost()
