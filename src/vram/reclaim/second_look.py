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
    age_s = _seconds(now) - _seconds(plan.made_at) - _CLOCKS_STEP_S
    return min(SECOND_LOOK_S, max(0.0, SECOND_LOOK_S - age_s)) if adopted else 0.0


def _seconds(moment: str) -> int:
    try:
        return calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return 0
