"""The manual: what each check looks at and what its answers mean, taken from the check itself."""

from __future__ import annotations

from vram.doctor.checks import CHECKS
from vram.errors import UsageError

# Python -OO strips docstrings, and with them the pages.
_STRIPPED = "{check}  This page is missing: Python was started with -OO, which removes it.\n"


def ids() -> tuple[str, ...]:
    """Every check's id, in the order in which they are asked."""
    return tuple(check.id for check in CHECKS)


def page(wanted: str) -> str:
    """The manual page of a check; case does not matter."""
    for check in CHECKS:
        if wanted.strip().lower() == check.id:
            return check.page or _STRIPPED.format(check=check.id)
    raise UsageError(f"there is no check {wanted!r}", hint=f"the checks are {', '.join(ids())}")


def summary(check: str) -> str:
    """What the check asks, in one line."""
    return page(check).partition("\n")[0].removeprefix(check).strip()
