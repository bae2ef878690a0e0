"""The manual: a page for each kind, taken from the module that judges it."""

from __future__ import annotations

from vram.oom.judge import KINDS

_STRIPPED = "{kind} This page is missing: Python was started with -OO, which removes it.\n"


def ids() -> tuple[str, ...]:
    """Every kind's id, in the order in which they are considered."""
    return tuple(kind.ID for kind in KINDS)


def page(kind: str) -> str | None:
    """The manual page of *kind*; None where there is no such kind."""
    wanted = kind.strip().lower()
    for each in KINDS:
        if wanted == each.ID:
            return each.__doc__ or _STRIPPED.format(kind=wanted)
    return None


def summary(kind: str) -> str:
    """What *kind* means in one line."""
    return (page(kind) or "").partition("\n")[0].partition(":")[2].strip()
