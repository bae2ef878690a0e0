"""The kinds of policies, and what each is about in one reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from vram.model.forecast import Forecast
from vram.model.ledger import Ledger
from vram.policy.kinds import (
    alert_unexplained,
    before_oom,
    end_leftovers,
    end_orphans,
    park_idle,
    sleep_idle,
    warn_owner,
)
from vram.policy.policy import Consent, Identity, Policy
from vram.policy.subjects import GhostNames, JobNames, PolicyKind, Situation, Subject, is_meant, spares

__all__ = ["KINDS", "PolicyKind", "subjects"]

KINDS = {
    each.KIND.name: each.KIND
    for each in (
        end_leftovers,
        end_orphans,
        park_idle,
        sleep_idle,
        before_oom,
        warn_owner,
        alert_unexplained,
    )
}


def subjects(
    policy: Policy,
    ledger: Ledger,
    allowed: Mapping[Consent, Collection[Identity]] = {},
    names: GhostNames | None = None,
    jobs: JobNames | None = None,
    own_pids: Collection[int] = (),
    forecasts: tuple[Forecast, ...] = (),
    agreed: Collection[Identity] = (),
) -> Iterator[Subject]:
    """Everything in *ledger* that *policy* is about, where the GPUs concerned answer."""
    kind, names, jobs = KINDS[policy.do], names or GhostNames(), jobs or JobNames()
    names.read(ledger)
    jobs.read(ledger)
    answering = {gpu.index for gpu in ledger.gpus if gpu.status == "ok"}
    situation = Situation(
        policy=policy,
        ledger=ledger,
        names=names,
        jobs=jobs,
        allowed=allowed.get(kind.consent, ()) if kind.consent else (),
        own_pids=own_pids,
        forecasts=forecasts,
        agreed=agreed,
    )
    for subject in kind.find(situation):
        if kind.spares_system_users and spares(policy.match, subject):
            continue
        if answering >= set(subject.gpus) and is_meant(policy.match, subject):
            yield subject
