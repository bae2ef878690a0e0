"""alert-unexplained: tell the administrators of memory in use that nothing visible accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from vram.errors import ConfigError
from vram.ledger.holds import by_gpu, find_holds
from vram.model.ledger import Entry, Ledger, known_bytes
from vram.policy.policy import MIN_NARROWING, NotifyConfig, PolicyMatch
from vram.policy.subjects import PolicyKind, Situation, Subject, evidence_of
from vram.units import size


def _unexplained(situation: Situation) -> Iterator[Subject]:
    ledger = situation.ledger
    for at, parts in by_gpu(find_holds(ledger)).items():
        entries = [part.entry for part in parts if _is_unexplained(part.entry, ledger)]
        gpu, nbytes = ledger.gpus[at], known_bytes(entries)
        if nbytes:
            yield Subject(
                key=f"unexplained {gpu.uuid or f'GPU {gpu.index}'}",
                what=f"{size(nbytes)} in use on GPU {gpu.index} that nothing visible accounts for",
                gpus=(gpu.index,),
                nbytes=nbytes,
                evidence=evidence_of(entries),
            )


def _is_unexplained(entry: Entry, ledger: Ledger) -> bool:
    # An ordinary user does not see all processes: what is hidden from one is no news.
    return entry.kind == "unattributed" or (entry.kind == "hidden" and ledger.host.uid == 0)


def _check_match(match: PolicyMatch, where: str) -> None:
    if match.min_bytes < MIN_NARROWING:
        raise ConfigError(
            f"{where} does not say from which size on", hint='add min-size = "1GiB" below [policy.match]'
        )


def _check_notify(notify: NotifyConfig, where: str) -> None:
    if notify.terminals:
        raise ConfigError(
            f"{where}: unexplained memory has no owner whose terminal could be written to",
            hint="use mail with mail-to, or webhook",
        )
    if notify.mail and not notify.mail_to:
        raise ConfigError(f"{where} does not say whom to mail", hint='add mail-to = "root"')


KIND = PolicyKind(
    name="alert-unexplained",
    action="alert",
    after_s=600.0,
    keys=("again-after", "notify"),
    match_keys=("gpus", "min-size"),
    preview="report",
    find=_unexplained,
    check_match=_check_match,
    check_notify=_check_notify,
)
