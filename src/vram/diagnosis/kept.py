"""The finding that several causes end in: somebody who is no user of memory keeps it from coming back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.holdings import Holding, gather
from vram.diagnosis.leftover import doubt, working
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.model.observation import HostFacts


def kept(
    code: str,
    ledger: Ledger,
    wanted: Callable[[Entry], bool],
    *,
    title: Callable[[Holding], str],
    cause: Callable[[Holding], str],
    gentler: Callable[[Holding], Iterable[Remedy]],
) -> Iterator[Finding]:
    """A finding for all that each holder keeps of the *wanted* entries.

    It has the remedies of its cause besides ending the holders.
    """
    holdings = gather(ledger.gpus, wanted)
    works = working(ledger) if holdings else frozenset()
    for holding in holdings:
        unsure = [reason for entry in holding.entries if (reason := doubt(entry, works, ledger.host))]
        yield Finding(
            code=code,
            title=title(holding),
            nbytes=holding.nbytes,
            cause=cause(holding),
            gpus=holding.gpus,
            pids=tuple(keeper.pid for keeper in holding.keepers),
            evidence=words.evidence(holding.evidence),
            remedies=remedies.ordered((*_ending(ledger.host, holding, unsure), *gentler(holding))),
        )


def _ending(host: HostFacts, holding: Holding, unsure: list[str]) -> tuple[Remedy, ...]:
    """``vram free`` where it would end these holders by itself; else how to end them by name."""
    people = holding.keepers
    ours = host.uid == 0 or all(each.user == host.user for each in people)
    known = all(each.executable is not None for each in people)
    if ours and known and not unsure and people:
        return (remedies.give_back(people),)
    stopped = [each for each in people if each.state == "T"]
    if stopped:
        return (remedies.resume(host, stopped[0]),)
    return remedies.end(host, people, certain=holding.certain, either=holding.either and not holding.certain)
