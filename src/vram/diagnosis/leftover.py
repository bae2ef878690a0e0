"""Leftovers: memory of dead owners that somebody else still holds. Ending its holders harms nobody's work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

from msgspec import Struct

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather, is_healthy, is_stopped, is_stuck
from vram.diagnosis.remedies import MAX_PIDS, SUDO_VRAM
from vram.ledger.processes import in_use, living_holders
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.model.observation import HostFacts
from vram.protected import role

ORPHANED, EXPORTED, DMABUF, ZOMBIE = "VR101", "VR103", "VR104", "VR203"
CODES = (ORPHANED, EXPORTED, DMABUF, ZOMBIE)
NO_VISIBLE_HOLDER = "VR105"
GHOST_CODES = (*CODES, NO_VISIBLE_HOLDER)
"""The findings about memory of dead owners, whether or not its holders can be seen."""


def code_of(entry: Entry) -> str | None:
    """The finding that calls *entry* a leftover; None where it is none."""
    if entry.kind == "exported":
        return DMABUF if entry.medium == "dmabuf" else EXPORTED
    if entry.kind == "orphaned" and living_holders(entry):
        return ZOMBIE if entry.charged_state == "Z" else ORPHANED
    return None


def ghost_code(entry: Entry) -> str:
    """The finding about a ghost's *entry*."""
    return code_of(entry) or NO_VISIBLE_HOLDER


def working(ledger: Ledger) -> frozenset[int]:
    """Healthy processes that are charged with GPU memory of their own."""
    return frozenset(
        entry.holder.pid
        for gpu in ledger.gpus
        for entry in gpu.accounted
        if in_use(entry) and entry.holder is not None and is_healthy(entry.holder)
    )


class Doubt(Struct, frozen=True):
    """Why the holders of a leftover are not ended unless they are named."""

    code: Literal["handed-over", "stuck", "protected", "stopped", "works", "likely"]
    text: str


def doubt(entry: Entry, works: Collection[int]) -> Doubt | None:
    """Why the holders of a leftover are not ended unless they are named; None where they may be.

    Only a fork gives a context's files to a process; a handle or a dma-buf anybody can hand to a service
    that takes descriptors, and be gone. So who holds one is ended only by name.
    """
    people = living_holders(entry)
    for holder in people:
        if is_stuck(holder):
            text = f"pid {holder.pid} is waiting in the kernel or exiting; signals have no effect now"
            return Doubt("stuck", text)
        if part := role(holder.pid, holder):
            return Doubt("protected", f"pid {holder.pid} is {part}")
        if is_stopped(holder):
            by = "a debugger" if holder.state == "t" else "a signal (Ctrl-Z)"
            return Doubt("stopped", f"pid {holder.pid} is stopped by {by}")
        if holder.pid in works:
            return Doubt("works", f"pid {holder.pid} also uses GPU memory of its own")
    if entry.kind == "exported" and people:
        what = "dma-buf" if entry.medium == "dmabuf" else "handle"
        return Doubt("handed-over", f"pid {people[0].pid} may have received the {what} from another program")
    if entry.confidence != "fact":
        who = (
            f"pid {people[0].pid} probably holds"
            if len(people) == 1
            else f"{len(people)} processes probably hold"
        )
        return Doubt("likely", f"{who} it, but this is not certain")
    return None


def way_back(ledger: Ledger) -> str | None:
    """The one command that frees the leftovers here; None where there are none, or no command would."""
    works, host = working(ledger), ledger.host
    entries = [entry for gpu in ledger.gpus for entry in gpu.accounted if code_of(entry)]
    certain = [entry for entry in entries if doubt(entry, works) is None]
    if any(
        host.uid == 0 or all(each.user == host.user for each in living_holders(entry)) for entry in certain
    ):
        return "vram free"
    pids = dict.fromkeys(str(holder.pid) for entry in certain or entries for holder in living_holders(entry))
    if not pids or len(pids) > MAX_PIDS:
        return None
    ours = host.uid == 0 or all(each.user == host.user for entry in entries for each in living_holders(entry))
    stopped = any(is_stopped(each) or is_stuck(each) for entry in entries for each in living_holders(entry))
    return None if stopped and not certain else f"{'vram' if ours else SUDO_VRAM} kill {' '.join(pids)}"


# ---- the finding that several causes end in ----


def leftover_findings(
    code: str,
    ledger: Ledger,
    wanted: Callable[[Entry], bool],
    *,
    title: Callable[[HeldMemory], str],
    cause: Callable[[HeldMemory], str],
    gentler: Callable[[HeldMemory], Iterable[Remedy]],
) -> Iterator[Finding]:
    """A finding for all that each holder has of the *wanted* entries.

    *gentler* are the remedies of its cause; how to end the holders comes beside them.
    """
    holdings = gather(ledger.gpus, wanted)
    works = working(ledger) if holdings else frozenset()
    for held in holdings:
        doubts = [each for entry in held.entries if (each := doubt(entry, works))]
        yield Finding(
            code=code,
            title=title(held),
            nbytes=held.nbytes,
            cause=cause(held),
            gpus=held.gpus,
            pids=tuple(holder.pid for holder in held.living),
            evidence=words.evidence(held.evidence),
            remedies=remedies.ordered((*_ending(ledger.host, held, doubts), *gentler(held))),
        )


def _ending(host: HostFacts, held: HeldMemory, doubts: list[Doubt]) -> tuple[Remedy, ...]:
    """``vram free`` where it would end these holders by itself; else how to end them by name."""
    people = held.living
    ours = host.uid == 0 or all(each.user == host.user for each in people)
    known = all(each.executable is not None for each in people)
    if ours and known and not doubts and people:
        return (remedies.free(people),)
    stopped = [each for each in people if each.state == "T"]
    if stopped:
        return (remedies.resume(host, stopped[0]),)
    return remedies.end(host, people, certain=held.certain, one_of=held.one_of and not held.certain)
