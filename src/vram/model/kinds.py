"""The kinds of ledger entries and what each one means: the only place that classifies them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal[
    "free",
    "reserved",
    "context",
    "live",
    "cached",
    "fragmented",
    "process",
    "orphaned",
    "exported",
    "hidden",
    "windows",
    "guest",
    "overhead",
    "unattributed",
    "unreported",
    "unassigned",
]

Leftover = Literal["yes", "no", "by-holder", "unknown"]
"""Whether nobody works with these bytes any more; "by-holder": the state of their holder decides."""


class KindFacts(NamedTuple):
    """What everybody needs to know of a kind."""

    used: bool | None
    """Whether the bytes are in use; None where the driver does not report it."""
    held: bool
    """Whether a process holds them, named or not. False: the driver's own, or nobody's at all."""
    charged: bool
    """Whether a working process is charged with them: a whole process, or a part of its memory."""
    leftover: Leftover


_NOT_USED = KindFacts(used=False, held=False, charged=False, leftover="no")
_CHARGED = KindFacts(used=True, held=True, charged=True, leftover="by-holder")
_LEFT = KindFacts(used=True, held=True, charged=False, leftover="yes")
_UNSEEN = KindFacts(used=True, held=True, charged=False, leftover="unknown")

KINDS: dict[Kind, KindFacts] = {
    "free": _NOT_USED,
    "reserved": _NOT_USED,  # by the driver, for itself and its firmware: never free, never anybody's
    "unassigned": _NOT_USED,  # memory of a GPU under MIG that no instance was given
    "unreported": KindFacts(used=None, held=False, charged=False, leftover="unknown"),
    "overhead": KindFacts(used=True, held=False, charged=False, leftover="no"),
    "process": _CHARGED,
    "context": _CHARGED,
    "live": _CHARGED,
    "cached": _CHARGED,
    "fragmented": _CHARGED,
    "orphaned": _LEFT,
    "exported": _LEFT,
    "unattributed": _LEFT,
    "hidden": _UNSEEN,
    "guest": _UNSEEN,  # of Linux processes together, as Windows counts them
    "windows": KindFacts(used=True, held=True, charged=False, leftover="no"),
}

MEANINGS: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "free": ("not in use", ()),
    "reserved": ("the driver's own part: firmware, page tables, ECC", ("VR401",)),
    "process": ("charged to a living process, not split further", ("VR206",)),
    "context": ("what CUDA itself uses in a process, before any allocation", ("VR205",)),
    "live": ("arrays and allocations that the program still has", ("VR206",)),
    "cached": ("freed by the program, but kept by a pool for its next allocation", ()),
    "fragmented": ("cached, but between arrays in use, so that a trim does not free it", ()),
    "orphaned": (
        ("memory of a dead process, held by a living one (visible or not)"),
        ("VR101", "VR105", "VR203"),
    ),
    "exported": ("held by an open handle or a dma-buf; no process list names it", ("VR103", "VR104")),
    "hidden": ("held by a process that is not visible from here", ("VR301", "VR302")),
    "overhead": ("in use beyond what the driver charges to processes; each context adds some", ()),
    "windows": ("held by a Windows program, under WSL2", ("VR602",)),
    "guest": ("held by Linux processes together, as Windows counts them under WSL2", ("VR604",)),
    "unassigned": ("in no MIG instance: nobody can use it", ("VR406",)),
    "unreported": ("free, or held by a process that is not visible: the driver does not report it", ()),
    "unattributed": ("in use, and nothing visible accounts for it", ("VR106",)),
}
"""What each line of a ledger is, and the findings that tell more about it."""
