"""The manual: what each code means, taken from the rule that gives it."""

from __future__ import annotations

from vram.diagnosis.engine import RULES
from vram.errors import UsageError

# Python -OO strips docstrings, and with them the pages.
_STRIPPED = "{code} This page is missing: Python was started with -OO, which removes it.\n"


def codes() -> tuple[str, ...]:
    """Every code, in ascending order."""
    return tuple(sorted(rule.CODE for rule in RULES))


def page(code: str) -> str:
    """The manual page of *code*; case does not matter."""
    wanted = code.strip().upper()
    for rule in RULES:
        if wanted == rule.CODE:
            return rule.__doc__ or _STRIPPED.format(code=wanted)
    raise UsageError(f"there is no code {code!r}", hint=f"the codes are {', '.join(codes())}")


def summary(code: str) -> str:
    """What *code* means in one line, without the code."""
    return page(code).partition("\n")[0].removeprefix(code.strip().upper()).strip()
