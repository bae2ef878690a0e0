"""What is said of policies: as JSON to readers, in messages to owners, and before they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import VramError
from vram.host.ports import Host
from vram.ledger.processes import processes
from vram.model.ledger import Ledger
from vram.policy.kinds import KINDS, before_oom, subjects
from vram.policy.policy import Consent, Decision, Policy, PolicyMatch, PolicyMode
from vram.policy.subjects import Subject
from vram.reclaim.device_state import read_and_diagnose
from vram.report.escape import inert
from vram.serve.policies.consent import may_be_allowed
from vram.serve.socket.peers import agreed_to, opted_in
from vram.serve.socket.worker import Notification
from vram.serve.viewer import Viewer
from vram.units import duration, size

if TYPE_CHECKING:
    from vram.serve.policies.policy_part import PolicyPart


_MAX_SHOWN = 20

# ---- to readers of the API and the socket: names as each may see them ----


class PolicyReport(Struct, frozen=True, kw_only=True):
    """A policy in use. How people are told is named, without addresses."""

    name: str
    do: str
    mode: PolicyMode
    after_s: float
    readings: int
    most_per_hour: int
    all: bool
    match: PolicyMatch
    tells: tuple[str, ...]
    idle_s: float | None = None
    notice_s: float | None = None


class PoliciesReport(Struct, frozen=True, kw_only=True):
    """The policies in use, and at most two hundred decisions, newest first."""

    schema: Literal[1] = 1
    policies: tuple[PolicyReport, ...]
    decisions: tuple[Decision, ...]


def policies_report(part: PolicyPart, who: Viewer) -> PoliciesReport:
    return PoliciesReport(
        policies=tuple(_policy_report(policy, who) for policy in part.engine.policies),
        decisions=tuple(_decision(each, who) for each in reversed(part.decisions)),
    )


def _policy_report(policy: Policy, who: Viewer) -> PolicyReport:
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
        idle_s=policy.idle_s if KINDS[policy.do].only_idle else None,
        notice_s=policy.notice_s if KINDS[policy.do].gives_notice else None,
    )


def _decision(decision: Decision, who: Viewer) -> Decision:
    """Evidence and messages name processes in sentences: they are shown to those who may see them all."""
    targets, told = tuple(map(who.named, decision.targets)), tuple(map(who.named, decision.told))
    if (targets, told) == (decision.targets, decision.told):
        return decision
    return replace(decision, targets=targets, told=told, evidence=(), message="")


# ---- to owners and administrators ----


def notice(decision: Decision, host_name: str, uids: tuple[int, ...]) -> Notification:
    """The message about *decision* for the owners *uids*."""
    where = ", ".join(f"GPU {gpu}" for gpu in decision.gpus)
    if decision.do == "alert":
        title = f"vram on {host_name}: {size(decision.nbytes)} on {where} is unexplained"
        lines = [decision.reason, "`vram why` on that machine shows more."]
    elif decision.do == "announce":
        title = f"vram on {host_name}: a job on {where} will be ended in {duration(decision.notice_s)}"
        lines = [f"Its launcher is dead, and it does nothing. It holds {size(decision.nbytes)}:"]
        lines += [f"  pid {target.pid}  {target.command or ''}" for target in decision.targets]
        lines += [
            "It is not ended while it uses the CPU or a GPU.",
            f"If you do not need it: vram kill --job {decision.targets[0].pid}",
            "Evidence:",
            *(f"  {line}" for line in decision.evidence[:5]),
        ]
    elif decision.do == "relieve":
        title = f"vram on {host_name}: {where} is nearly full"
        lines = [f"{decision.reason}.", "What grows is yours:"]
        lines += [f"  pid {target.pid}  {target.command or ''}" for target in decision.told]
        lines += [f"  {line}" for line in decision.evidence[:5]]
        lines += [f"Which line: vram attach {decision.told[0].pid}, then vram top"] if decision.told else []
    else:
        title = f"vram on {host_name}: {size(decision.nbytes)} of a dead process is held on {where}"
        lines = [f"It has been held for {duration(decision.held_s)}, by:"]
        lines += [f"  pid {target.pid}  {target.command or ''}" for target in decision.targets]
        pids = " ".join(str(target.pid) for target in decision.targets)
        lines += [f"If you do not need it: vram kill {pids}", "Evidence:"]
        lines += [f"  {line}" for line in decision.evidence[:5]]
    facts = {
        "schema": 1,
        "host": host_name,
        "policy": decision.policy,
        "code": decision.code,
        "gpus": list(decision.gpus),
        "nbytes": decision.nbytes,
        "held_s": decision.held_s,
        **({"ends_in_s": decision.notice_s} if decision.do == "announce" else {}),
        "processes": [
            {"pid": each.pid, "user": inert(each.user or ""), "command": inert(each.command or "")}
            for each in decision.told or decision.targets
        ],
        "evidence": [inert(line) for line in decision.evidence],
    }
    return Notification(title=inert(title), lines=tuple(map(inert, lines)), uids=uids, facts=facts)


# ---- before they run ----


def preview(policies: tuple[Policy, ...], host: Host, deadline_s: float) -> Iterator[str]:
    """What *policies* would do now, whatever their delays; a machine that cannot be read is a line too."""
    ledger: Ledger | None = None
    trouble = ""
    try:
        ledger, _ = read_and_diagnose(host, (), deadline_s)
    except VramError as error:
        trouble = f"what they would do now is unknown: {error}"
    for policy in policies:
        yield inert(_describe(policy))
        found = () if ledger is None else _found(policy, ledger, host)
        yield from (
            f"  now: would {KINDS[policy.do].preview} {inert(_whom(each))}" for each in found[:_MAX_SHOWN]
        )
        if len(found) > _MAX_SHOWN:
            yield f"  now: and {len(found) - _MAX_SHOWN} more"
        if ledger is not None and not found:
            yield "  now: nothing that it is about"
    if trouble:
        yield inert(trouble)


def _found(policy: Policy, ledger: Ledger, host: Host) -> tuple[Subject, ...]:
    allowed, own_pids = _find_allowed(policy, ledger), host.signals.self_and_ancestors()
    return tuple(subjects(policy, ledger, allowed, own_pids=own_pids, agreed=_find_agreed(policy, ledger)))


def _describe(policy: Policy) -> str:
    kind = KINDS[policy.do]
    acts = "acts" if policy.mode == "act" else "dry run: only says what it would do"
    settled = f"after {duration(policy.after_s)} in {policy.readings} readings or more"
    if kind.only_idle:
        settled += f", {duration(policy.idle_s)} of them idle"
    if kind.gives_notice:
        told = f"told {duration(policy.notice_s)} before" if policy.notice_s else "not told before"
        settled += f", owners {told}"
    return f"{policy.name} ({policy.do}): {acts}; {settled}, at most {policy.most_per_hour} an hour"


def _whom(subject: Subject) -> str:
    people = ", ".join(
        f"pid {each.pid} of {each.user or 'an unknown user'} ({each.command or '?'})"
        for each in subject.targets
    )
    return f"{people}: {subject.what}" if people else subject.what


def _find_agreed(policy: Policy, ledger: Ledger) -> frozenset[tuple[int, int]]:
    """Who may be asked for memory before a GPU is full."""
    if policy.do != before_oom.KIND.name:
        return frozenset()
    return frozenset(
        (each.pid, each.holder.started_at)
        for each in processes(ledger).values()
        if each.holder.started_at is not None and agreed_to(each.pid, each.holder.started_at)
    )


def _find_allowed(policy: Policy, ledger: Ledger) -> dict[Consent, frozenset[tuple[int, int]]]:
    """Whose environment allows it; what was allowed over a socket only the running service knows."""
    what = KINDS[policy.do].consent
    if what is None:
        return {}
    return {what: frozenset(each for each in may_be_allowed(ledger, what) if opted_in(what, *each))}
