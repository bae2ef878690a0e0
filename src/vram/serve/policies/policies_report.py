"""Policies and their last decisions, as JSON for the API and the socket; names as the reader may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.policy.config import Policy, PolicyAction, PolicyMatch, PolicyMode
from vram.policy.decision import Decision, PolicyTarget
from vram.serve.viewer import Viewer

if TYPE_CHECKING:
    from vram.serve.policies.policy_part import PolicyPart


class PolicyReport(Struct, frozen=True, kw_only=True):
    """A policy in use. How people are told is named, without addresses."""

    name: str
    do: PolicyAction
    mode: PolicyMode
    after_s: float
    readings: int
    most_per_hour: int
    all: bool
    match: PolicyMatch
    tells: tuple[str, ...]


class PoliciesReport(Struct, frozen=True, kw_only=True):
    """The policies in use, and at most two hundred decisions, newest first."""

    schema: Literal[1] = 1
    policies: tuple[PolicyReport, ...]
    decisions: tuple[Decision, ...]


def policies_report(part: PolicyPart, who: Viewer) -> PoliciesReport:
    return PoliciesReport(
        policies=tuple(_shown(policy, who) for policy in part.engine.policies),
        decisions=tuple(_decision(each, who) for each in reversed(part.decisions)),
    )


def _shown(policy: Policy, who: Viewer) -> PolicyReport:
    notify = policy.notify
    ways = (("terminals", notify.terminals), ("mail", notify.mail), ("webhook", notify.webhook))
    # Patterns may name people and what they run: that is for root's eyes.
    match = policy.match if who.others == "everything" else PolicyMatch(gpus=policy.match.gpus)
    return PolicyReport(
        name=policy.name,
        do=policy.do,
        mode=policy.mode,
        after_s=policy.after_s,
        readings=policy.readings,
        most_per_hour=policy.most_per_hour,
        all=policy.all,
        match=match,
        tells=tuple(name for name, is_used in ways if is_used),
    )


def _decision(decision: Decision, who: Viewer) -> Decision:
    """Evidence and messages name processes in sentences: they are shown to those who may see them all."""
    targets = tuple(_target(each, who) for each in decision.targets)
    if targets == decision.targets:
        return decision
    return replace(decision, targets=targets, evidence=(), message="")


def _target(target: PolicyTarget, who: Viewer) -> PolicyTarget:
    if who.others == "everything" or (target.user is not None and target.user in who.names):
        return target
    return replace(
        target,
        command=target.command if who.others == "commands" else None,
        user=target.user if who.others in ("commands", "users") else None,
    )
