"""The finding that several causes end in: somebody who is no user of memory keeps it from coming back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.holdings import HeldMemory, gather
from vram.diagnosis.leftover import doubt, working
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.model.observation import HostFacts


def kept(
    code: str,
    ledger: Ledger,
    wanted: Callable[[Entry], bool],
    *,
    title: Callable[[HeldMemory], str],
    cause: Callable[[HeldMemory], str],
    gentler: Callable[[HeldMemory], Iterable[Remedy]],
) -> Iterator[Finding]:
    """A finding for all that each holder keeps of the *wanted* entries.

    It has the remedies of its cause besides ending the holders.
    """
    holdings = gather(ledger.gpus, wanted)
    works = working(ledger) if holdings else frozenset()
    for held in holdings:
        unsure = [reason for entry in held.entries if (reason := doubt(entry, works, ledger.host))]
        yield Finding(
            code=code,
            title=title(held),
            nbytes=held.nbytes,
            cause=cause(held),
            gpus=held.gpus,
            pids=tuple(keeper.pid for keeper in held.living),
            evidence=words.evidence(held.evidence),
            remedies=remedies.ordered((*_ending(ledger.host, held, unsure), *gentler(held))),
        )


def _ending(host: HostFacts, held: HeldMemory, unsure: list[str]) -> tuple[Remedy, ...]:
    """``vram free`` where it would end these holders by itself; else how to end them by name."""
    people = held.living
    ours = host.uid == 0 or all(each.user == host.user for each in people)
    known = all(each.executable is not None for each in people)
    if ours and known and not unsure and people:
        return (remedies.give_back(people),)
    stopped = [each for each in people if each.state == "T"]
    if stopped:
        return (remedies.resume(host, stopped[0]),)
    return remedies.end(host, people, certain=held.certain, either=held.one_of and not held.certain)
