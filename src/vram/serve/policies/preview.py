"""What policies would do right now, whatever their delays: for ``vram serve --check-config``. Only reads."""

from __future__ import annotations

from collections.abc import Iterator

from vram.errors import VramError
from vram.host.ports import Host
from vram.ledger.processes import processes
from vram.model.ledger import Ledger
from vram.policy.config import Policy
from vram.policy.subjects import Subject, subjects
from vram.reclaim.device_state import read_and_diagnose
from vram.report.escape import inert
from vram.serve.socket.peers import opted_in
from vram.units import duration

_MAX_SHOWN = 20
_VERBS = {
    "end-leftovers": "end",
    "park-idle": "park, once somebody waits for room,",
    "warn-owner": "warn the owners of",
    "alert-unexplained": "report",
}


def preview(policies: tuple[Policy, ...], host: Host, deadline_s: float) -> Iterator[str]:
    """Lines for people; a machine that cannot be read is one of them."""
    ledger: Ledger | None = None
    trouble = ""
    try:
        ledger, _ = read_and_diagnose(host, (), deadline_s)
    except VramError as error:
        trouble = f"what they would do now is unknown: {error}"
    for policy in policies:
        yield inert(_described(policy))
        found = () if ledger is None else tuple(subjects(policy, ledger, _allowed(policy, ledger)))
        yield from (f"  now: would {_VERBS[policy.do]} {inert(_whom(each))}" for each in found[:_MAX_SHOWN])
        if len(found) > _MAX_SHOWN:
            yield f"  now: and {len(found) - _MAX_SHOWN} more"
        if ledger is not None and not found:
            yield "  now: nothing that it is about"
    if trouble:
        yield inert(trouble)


def _described(policy: Policy) -> str:
    acts = "acts" if policy.mode == "act" else "dry run: only says what it would do"
    settled = f"after {duration(policy.after_s)} in {policy.readings} readings or more"
    return f"{policy.name} ({policy.do}): {acts}; {settled}, at most {policy.most_per_hour} an hour"


def _whom(subject: Subject) -> str:
    people = ", ".join(
        f"pid {each.pid} of {each.user or 'an unknown user'} ({each.command or '?'})"
        for each in subject.targets
    )
    return f"{people}: {subject.what}" if people else subject.what


def _allowed(policy: Policy, ledger: Ledger) -> frozenset[tuple[int, int]]:
    """Whose environment allows parking; what was allowed over a socket only the running service knows."""
    if policy.do != "park-idle":
        return frozenset()
    return frozenset(
        (each.pid, each.holder.started_at)
        for each in processes(ledger).values()
        if each.idle and each.holder.started_at is not None and opted_in(each.pid, each.holder.started_at)
    )
