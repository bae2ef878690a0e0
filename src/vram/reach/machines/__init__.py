"""What differs from processor to processor when a thread of another process is stopped and sent on.

Two are known. Everything else in :mod:`vram.reach` is the same on both.
"""

from __future__ import annotations

import os

from vram.reach.machines import aarch64, x86_64
from vram.reach.machines.machine import Call, ChainCode, Detour, Interrupted, Machine

__all__ = ["KNOWN", "Call", "ChainCode", "Detour", "Interrupted", "Machine", "this_machine"]

KNOWN: dict[str, Machine] = {"x86_64": x86_64.X86_64(), "aarch64": aarch64.Aarch64()}
"""By what the kernel calls them."""


def this_machine() -> Machine:
    """The one that we run on. Raises LookupError where that is none of them."""
    return KNOWN[os.uname().machine]
