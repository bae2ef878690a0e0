"""The plan that ends the holders of one leftover, exactly those that were chosen, as `vram free` would."""

from __future__ import annotations

from collections.abc import Collection

from vram.errors import Refused, WorldChanged
from vram.host.ports import Host
from vram.ledger.processes import processes
from vram.model.plan import Draft, PlanRequest
from vram.reclaim.candidates import Leftover, leftovers
from vram.reclaim.device_state import read_and_diagnose
from vram.reclaim.plan_file import with_digest
from vram.reclaim.planner import plan


def plan_ending(host: Host, holders: Collection[tuple[int, int]], deadline_s: float) -> Draft:
    """Read the machine and return the plan for the leftover that *holders* (pid, start time) hold.

    Raises WorldChanged where they are not, all of them and nobody else, the holders of one leftover that
    `vram free` would end without being told a name, and the refusal where one of them must be left alone.
    """
    ledger, findings = read_and_diagnose(host, (), deadline_s)
    wanted = set(holders)
    found = [each for each in leftovers(ledger, processes(ledger)) if _identities(each) & wanted]
    if len(found) != 1 or _identities(found[0]) != wanted:
        pids = ", ".join(str(pid) for pid, _ in sorted(wanted))
        raise WorldChanged(
            f"pid {pids} no longer holds a leftover, or no longer alone", hint="make a new plan"
        )
    draft = plan(host, ledger, findings, PlanRequest(only="kill"))
    steps = [
        step
        for step in draft.plan.steps
        if step.target and (step.target.process.pid, step.target.process.started_at) in wanted
    ]
    if len(steps) != len(wanted):
        raise _refusal(draft, found[0])
    made = with_digest(draft.plan.made_at, draft.plan.boot_id, None, found[0].gpus, steps)
    return Draft(plan=made)


def _identities(leftover: Leftover) -> set[tuple[int, int | None]]:
    return {(each.pid, each.holder.started_at) for each in leftover.processes}


def _refusal(draft: Draft, leftover: Leftover) -> Refused:
    for each in draft.skipped:
        if each.pid in leftover.pids:
            return Refused(each.why, hint=f"`{each.command}`" if each.command else "")
    return Refused("the planner leaves it alone", hint="see `vram free --dry-run`")
