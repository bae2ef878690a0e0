"""``--json`` of the commands that free memory: the plan, who is skipped, and the receipt."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.plan import Draft, Plan, Receipt, Skipped
from vram.report.json import encode


class ReclaimReport(Struct, frozen=True, kw_only=True):
    """``receipt`` is null where nothing was run. ``returned_bytes`` in it are measured.

    ``skipped`` is called ``spared`` in schema 1. ``left`` is memory of dead owners that was still there
    when all of it had been asked for.
    """

    schema: Literal[2] = 2
    executed: bool
    plan: Plan
    skipped: tuple[Skipped, ...]
    receipt: Receipt | None
    left: tuple[Skipped, ...] = ()


def report(draft: Draft, receipt: Receipt | None, left: tuple[Skipped, ...] = ()) -> bytes:
    return encode(
        ReclaimReport(
            executed=receipt is not None, plan=draft.plan, skipped=draft.skipped, receipt=receipt, left=left
        )
    )
