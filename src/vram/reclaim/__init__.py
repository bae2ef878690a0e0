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
    from vram.model.plan import Draft, Outcome, Plan, Receipt, StepKind

__all__ = ["execute", "plan"]

DEADLINE_S = 5.0


def plan(
    goal: int | str | None = None,
    *,
    gpus: tuple[int, ...] = (),
    up_to: StepKind | None = None,
    only: StepKind | None = None,
    findings: tuple[str, ...] = (),
    pids: tuple[int, ...] = (),
    host: Host | None = None,
    deadline_s: float = DEADLINE_S,
) -> Draft:
    """Look at the machine and return what would be done; nothing is touched.

    *goal* is what should come back, in bytes or like "20GiB". See :class:`vram.model.plan.Wish`.
    """
    from vram.model.plan import Wish
    from vram.reclaim.looking import look
    from vram.reclaim.planner import plan as make
    from vram.units import parse_size

    host = host or _local()
    nbytes = parse_size(goal) if isinstance(goal, str) else goal
    wish = Wish(goal_bytes=nbytes, gpus=gpus, up_to=up_to, only=only, findings=findings, pids=pids)
    return make(host, *look(host, gpus, deadline_s), wish)


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
    from vram.reclaim.looking import look

    host = host or _local()
    # A plan measures only GPUs that answer; whom it names may be on one that does not.
    gpus = {*plan.gpus, *(gpu for step in plan.steps for gpu in step.gpus)}
    grounds.require(plan, *look(host, tuple(sorted(gpus)), deadline_s))
    return executor.execute(host, plan, patience_s={**ladder.PATIENCE_S, **(patience_s or {})}, told=told)


def _local() -> Host:
    from vram.host.local import LocalHost

    return LocalHost()
