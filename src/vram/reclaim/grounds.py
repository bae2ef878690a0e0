"""Does a plan still stand? What it was made for must be true of the ledger of this moment."""

from __future__ import annotations

from collections.abc import Collection

from vram.diagnosis.leftover import CODES
from vram.errors import WorldChanged
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.plan import Plan, Step
from vram.reclaim.accounts import accounts
from vram.reclaim.blockers import blockers
from vram.reclaim.leftovers import leftovers

_HINT = "make a new plan"


def require(plan: Plan, ledger: Ledger, findings: tuple[Finding, ...], parked: Collection[int] = ()) -> None:
    """Raise WorldChanged where a target has released its memory, or holds no leftover any more.

    Who is *parked* holds nothing on a GPU, and is still meant.
    """
    known = accounts(ledger)
    named = {(code, pid) for each in leftovers(ledger, known) for pid in each.pids for code in CODES}
    named |= {(each.code, pid) for each in findings if each.code not in CODES for pid in each.pids}
    for step in plan.steps:
        if step.target is None:
            _require_empty(ledger, step)
            continue
        process = step.target.process
        account = known.get(process.pid)
        if account is None and process.pid in parked:
            continue
        if account is None or account.holder.started_at != process.started_at:
            raise WorldChanged(f"pid {process.pid} holds nothing here any more", hint=_HINT)
        if step.finding is not None and (step.finding, process.pid) not in named:
            raise WorldChanged(f"pid {process.pid} is no longer named by {step.finding}", hint=_HINT)


def _require_empty(ledger: Ledger, step: Step) -> None:
    """Where a whole GPU is the target, nobody may be on it."""
    for gpu in ledger.gpus:
        if gpu.index in step.gpus and blockers(ledger, gpu):
            raise WorldChanged(f"somebody is on GPU {gpu.index} again", hint=f"see `vram reset {gpu.index}`")
