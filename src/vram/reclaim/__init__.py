"""Give memory back with the least harm, and prove it by reading the device again.

    draft = vram.reclaim.plan(goal="20GiB", gpus=(0,))
    receipt = vram.reclaim.execute(draft.plan)

``plan`` only looks. ``execute`` refuses where the world is no longer what the plan was made for,
writes every step to the audit log before and after, and stops when the goal is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.plan import Draft, Outcome, Plan, Receipt, Spared, StepKind

__all__ = ["execute", "plan", "remaining"]

DEADLINE_S = 5.0


def plan(
    goal: int | str | None = None,
    *,
    gpus: tuple[int, ...] = (),
    up_to: StepKind | None = None,
    only: StepKind | None = None,
    findings: tuple[str, ...] = (),
    pids: tuple[int, ...] = (),
    park_idle: bool = False,
    tree: bool = False,
    host: Host | None = None,
    deadline_s: float = DEADLINE_S,
) -> Draft:
    """Look at the machine and return what would be done; nothing is touched.

    *goal* is what should come back on one GPU, in bytes or like "20GiB"; without it all caches and
    leftovers are planned. See :class:`vram.model.plan.Wish`.
    """
    from vram.model.plan import Wish
    from vram.reclaim.looking import look_at_all
    from vram.reclaim.planner import plan as make
    from vram.units import parse_size

    host = host or _local()
    nbytes = parse_size(goal) if isinstance(goal, str) else goal
    wish = Wish(
        goal_bytes=nbytes,
        gpus=gpus,
        up_to=up_to,
        only=only,
        findings=findings,
        pids=pids,
        park_idle=park_idle,
        tree=tree,
    )
    return make(host, *look_at_all(host, gpus, deadline_s), wish)


def execute(
    plan: Plan,
    *,
    host: Host | None = None,
    deadline_s: float = DEADLINE_S,
    patience_s: Mapping[StepKind, float] | None = None,
    told: Callable[[Outcome], None] | None = None,
) -> Receipt:
    """Do exactly *plan*, if it still stands; return asked, promised and returned.

    *patience_s* says how long a step of each kind may take, *told* hears of every outcome.
    """
    from vram.reclaim import executor, grounds, ladder
    from vram.reclaim.looking import look_at_all
    from vram.reclaim.planner import parked
    from vram.reclaim.verify import used_in

    host = host or _local()
    paused = {each.pid for each in parked(host)}
    ledger, findings = look_at_all(host, plan.gpus, deadline_s)
    grounds.require(plan, ledger, findings, paused)
    return executor.execute(
        host,
        plan,
        patience_s={**ladder.PATIENCE_S, **(patience_s or {})},
        told=told,
        used_now=used_in(ledger, plan.gpus),
    )


def remaining(
    plan: Plan, findings: tuple[str, ...] = (), *, host: Host | None = None, deadline_s: float = DEADLINE_S
) -> tuple[Spared, ...]:
    """Look again after *plan* was run: the leftovers that are still there on its GPUs."""
    from vram.model.plan import Wish
    from vram.reclaim.candidates import PlanContext
    from vram.reclaim.looking import look_at_all
    from vram.reclaim.spared import leftovers_left

    host = host or _local()
    ledger, found = look_at_all(host, plan.gpus, deadline_s)
    codes = tuple(code.strip().upper() for code in findings)
    return leftovers_left(PlanContext.of(ledger, found, Wish(gpus=plan.gpus, findings=codes)))


def _local() -> Host:
    from vram.host.local import LocalHost

    return LocalHost()
