"""``--json`` of the commands that give memory back: the plan, who is spared, and the receipt."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.plan import Draft, Plan, Receipt, Spared
from vram.report.json import encode


class ReclaimReport(Struct, frozen=True, kw_only=True):
    """``receipt`` is null where nothing was run. ``returned_bytes`` in it are measured.

    ``left`` is memory of dead owners that was still there when all of it had been asked for.
    """

    schema: Literal[1] = 1
    executed: bool
    plan: Plan
    spared: tuple[Spared, ...]
    receipt: Receipt | None
    left: tuple[Spared, ...] = ()


def report(draft: Draft, receipt: Receipt | None, left: tuple[Spared, ...] = ()) -> bytes:
    return encode(
        ReclaimReport(
            executed=receipt is not None, plan=draft.plan, spared=draft.spared, receipt=receipt, left=left
        )
    )
