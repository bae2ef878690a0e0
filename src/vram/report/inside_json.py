"""``vram inside --json``: what a process says it has on GPUs. Unknown is null."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.inside import InsideReceipt
from vram.report.json import encode


class InsideReport(Struct, frozen=True, kw_only=True):
    """``answer`` is the process's own account; ``charged`` in ``splits`` is the driver's figure.

    ``answer.left_out`` says what an answer had no room for.
    """

    schema: Literal[1] = 1
    inside: InsideReceipt


def report(receipt: InsideReceipt) -> bytes:
    return encode(InsideReport(inside=receipt))
