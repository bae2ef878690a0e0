"""Leftovers: memory of dead owners that other processes still hold. Ending these harms no one's work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Literal

from msgspec import Struct

from vram.diagnosis import remedies
from vram.diagnosis.held import finding_about
from vram.diagnosis.remedies import MAX_PIDS, SUDO_VRAM
from vram.ledger.holds import find_holds, in_ledger_order, narrow
from vram.ledger.jobs import find_held_jobs
from vram.ledger.processes import is_healthy, is_stopped, is_stuck, living_holder, living_holders
from vram.model.finding import Finding, Remedy
from vram.model.hold import HeldPart, Hold
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
    if entry.holder is not None and entry.holder.alive and living_holder(entry) is None:
        return NO_VISIBLE_HOLDER  # a newcomer has the dead pid
    return code_of(entry) or NO_VISIBLE_HOLDER


def working(ledger: Ledger) -> frozenset[int]:
    """Healthy processes that are charged with GPU memory of their own."""
    return frozenset(
        hold.holders[0].pid
        for hold in find_holds(ledger, empty=True)
        if hold.what == "process" and is_healthy(hold.holders[0])
    )


def leftover_parts(ledger: Ledger) -> list[HeldPart]:
    """The leftovers on each GPU, in the order of the ledger; those of no bytes have holders, too."""
    ghosts = (hold for hold in find_holds(ledger, empty=True) if hold.what == "ghost")
    return [part for part in in_ledger_order(ghosts) if code_of(part.entry) is not None]


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


def way_back(ledger: Ledger, *, orphans: bool = False) -> str | None:
    """The one command that frees the leftovers here; None where there are none, or no command would.

    With *orphans*, it also ends jobs whose launcher is dead.
    """
    works, host = working(ledger), ledger.host
    found = find_held_jobs(ledger) if orphans else ()
    jobs = [each for each in found if each.job.is_orphan and all(map(is_healthy, each.holders))]
    if any(host.uid in (0, holder.uid) for each in jobs for holder in each.holders):
        return "vram free --orphans"
    entries = [part.entry for part in leftover_parts(ledger)]
    certain = [entry for entry in entries if doubt(entry, works) is None]
    if any(
        host.uid == 0 or all(each.user == host.user for each in living_holders(entry)) for entry in certain
    ):
        return "vram free"
    pids = dict.fromkeys(str(holder.pid) for entry in certain or entries for holder in living_holders(entry))
    if not pids and jobs:
        return f"{SUDO_VRAM} free --orphans"
    if not pids or len(pids) > MAX_PIDS:
        return None
    ours = host.uid == 0 or all(each.user == host.user for entry in entries for each in living_holders(entry))
    stopped = any(is_stopped(each) or is_stuck(each) for entry in entries for each in living_holders(entry))
    return None if stopped and not certain else f"{'vram' if ours else SUDO_VRAM} kill {' '.join(pids)}"


# ---- the finding that several causes end in ----


Description = tuple[str, str, tuple[Remedy, ...]]
"""Title, cause, and the remedies that are gentler than ending the holders."""


def leftover_findings(
    code: str, ledger: Ledger, describe: Callable[[Hold], Description]
) -> Iterator[Finding]:
    """A finding for each ghost, about as much of it as *code* is about, with how to end its holders."""
    works: frozenset[int] | None = None
    for hold in ghosts_of(code, ledger):
        works = working(ledger) if works is None else works
        doubts = [each for entry in hold.entries if (each := doubt(entry, works))]
        title, cause, gentler = describe(hold)
        yield finding_about(
            hold,
            code=code,
            title=title,
            cause=cause,
            pids=[each.pid for each in hold.holders],
            remedies=remedies.ordered((*_ending(ledger.host, hold, doubts), *gentler)),
        )


def ghosts_of(code: str, ledger: Ledger) -> Iterator[Hold]:
    """The ghosts that the finding *code* is about, each with those of its bytes."""
    for hold in find_holds(ledger):
        if hold.what == "ghost":
            about = narrow(hold, lambda entry: bool(entry.nbytes) and ghost_code(entry) == code)
            if about is not None:
                yield about


def _ending(host: HostFacts, hold: Hold, doubts: list[Doubt]) -> tuple[Remedy, ...]:
    """``vram free`` where it would end these holders by itself; else how to end them by name."""
    people = hold.holders
    ours = host.uid == 0 or all(each.user == host.user for each in people)
    known = all(each.executable is not None for each in people)
    if ours and known and not doubts and people:
        return (remedies.free(people),)
    stopped = [each for each in people if each.state == "T"]
    if stopped:
        return (remedies.resume(host, stopped[0]),)
    return remedies.end(host, people, certain=hold.certain, one_of=hold.one_of and not hold.certain)
