"""Judgement: every rule reads the ledger once; findings come out gravest and largest first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from vram.diagnosis import rules
from vram.errors import UsageError
from vram.model.finding import Finding
from vram.model.ledger import Ledger


class Rule(Protocol):
    """A module of ``rules``: a code that never changes, a manual page, and a judgement."""

    CODE: str

    def judge(self, ledger: Ledger) -> Iterable[Finding]: ...


def _module_names() -> list[str]:
    # pkgutil would do, and imports inspect, which takes longer than reading all rules.
    files = (name.partition(".") for name in os.listdir(rules.__path__[0]))
    return sorted({name for name, _, ending in files if ending in ("py", "pyc") and name != "__init__"})


RULES: tuple[Rule, ...] = tuple(
    cast("Rule", import_module(f"{rules.__name__}.{name}")) for name in _module_names()
)
"""Every module of ``rules``: a new file there is a new rule."""

_GRAVEST_FIRST = ("problem", "warning", "info")


def rule_name(code: str) -> str:
    """The name of the rule with *code*, as its page begins: "Stopped process". Without pages, the code."""
    pages = (rule.__doc__ for rule in RULES if code == rule.CODE)
    title = (next(pages, None) or code).partition(":")[0]
    return title.removeprefix(f"{code} ")


def diagnose(ledger: Ledger) -> tuple[Finding, ...]:
    """Return what *ledger* means: problems, then warnings, then information, the largest first."""
    return tuple(sorted((finding for rule in RULES for finding in rule.judge(ledger)), key=_rank))


def _rank(finding: Finding) -> tuple[int, int, str, tuple[int, ...], tuple[int, ...]]:
    # A cause without a size of its own comes after those of its severity that have one.
    nbytes = -1 if finding.nbytes is None else finding.nbytes
    return _GRAVEST_FIRST.index(finding.severity), -nbytes, finding.code, finding.gpus, finding.pids


def require_code(code: str) -> None:
    """Raise UsageError unless some rule has this *code*; case does not matter."""
    codes = sorted(rule.CODE for rule in RULES)
    if code.strip().upper() not in codes:
        raise UsageError(f"no such code: {code!r}", hint=f"codes: {', '.join(codes)}")
