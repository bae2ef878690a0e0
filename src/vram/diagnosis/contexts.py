"""What a context alone costs: memory that no trim returns."""

from __future__ import annotations

from vram.model.ledger import Entry
from vram.units import MIB

# A bare context is 518 MiB on an H200, with a first PyTorch tensor 612; desktop programs that
# merely draw stay far below.
SMALLEST = 100 * MIB
LARGEST = 640 * MIB

ONLY_THE_CONTEXT = "the context itself, or hardly more; only ending the process returns it"


def is_bare(nbytes: int | None) -> bool:
    """Whether a process that is charged so much can hold hardly more than its context."""
    return nbytes is not None and SMALLEST <= nbytes <= LARGEST


def is_bare_context(entries: tuple[Entry, ...]) -> bool:
    """Whether these are one process's bytes on one NVIDIA GPU, and no more than about its context."""
    return len(entries) == 1 and entries[0].kind in ("process", "context") and is_bare(entries[0].nbytes)
