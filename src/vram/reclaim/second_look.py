"""Some leftovers are ended only when they are seen twice, seconds apart.

A daemon that is just making its context has the device's files open, no charge yet, and no parent: as a
process has that was left behind. It is charged a moment later. One that is of the dead owner's session, group
or children is not taken for such.
"""

from __future__ import annotations

import calendar
import time

from vram.model.ledger import Ledger
from vram.model.plan import Plan

SECOND_LOOK_S = 3.0
_CLOCKS_STEP_S = 1.0  # times are written in whole seconds


def second_look_s(plan: Plan, ledger: Ledger, now: str) -> float:
    """How long to wait before the machine is read once more; the reading for the plan was the first look."""
    ended = {step.target.process.pid for step in plan.steps if step.target and step.finding is not None}
    adopted = any(
        entry.proof == "adopted" and any(holder.pid in ended for holder in entry.holders)
        for gpu in ledger.gpus
        for entry in gpu.accounted
    )
    return min(SECOND_LOOK_S, max(0.0, SECOND_LOOK_S - _age_s(plan.made_at, now))) if adopted else 0.0


def _age_s(made_at: str, now: str) -> float:
    """How old the plan is at least; a time that cannot be read says nothing of that."""
    try:
        made, read = (calendar.timegm(time.strptime(each, "%Y-%m-%dT%H:%M:%SZ")) for each in (made_at, now))
    except ValueError:
        return 0.0
    return read - made - _CLOCKS_STEP_S
