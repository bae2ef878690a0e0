"""Judgement: every rule reads the ledger once; findings come out gravest and largest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from vram.diagnosis.rules import (
    bar1_exhausted,
    deleted_executable,
    dmabuf,
    exported_handle,
    figures_disagree,
    figures_withheld,
    gpu_lost,
    guest_unseen,
    in_use,
    inherited_files,
    managed_memory,
    many_contexts,
    mig_pending,
    mig_unassigned,
    mps_clients,
    no_answer,
    no_permission,
    no_visible_holder,
    orphaned_by_fork,
    other_namespace,
    reserved,
    row_remap,
    spilled,
    stopped,
    unexplained,
    uninterruptible,
    version_mismatch,
    windows_processes,
    zombie_parent,
)
from vram.errors import UsageError
from vram.model.finding import Finding
from vram.model.ledger import Ledger


class Rule(Protocol):
    """A module of ``rules``: a code that never changes, a manual page, and a judgement."""

    CODE: str

    def judge(self, ledger: Ledger) -> Iterable[Finding]: ...


RULES: tuple[Rule, ...] = (
    orphaned_by_fork,
    inherited_files,
    exported_handle,
    dmabuf,
    no_visible_holder,
    unexplained,
    figures_disagree,
    stopped,
    uninterruptible,
    zombie_parent,
    deleted_executable,
    many_contexts,
    in_use,
    managed_memory,
    other_namespace,
    no_permission,
    mps_clients,
    reserved,
    bar1_exhausted,
    row_remap,
    gpu_lost,
    no_answer,
    mig_unassigned,
    mig_pending,
    version_mismatch,
    spilled,
    windows_processes,
    figures_withheld,
    guest_unseen,
)

_GRAVEST_FIRST = ("problem", "warning", "info")


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
