"""What the four parking commands share: opening the host, recovery after a vram that died, and messages."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vram.errors import NotPermitted, Protected, UsageError
from vram.report.escape import inert
from vram.units import size

if TYPE_CHECKING:
    from vram.model.parking import Parked
    from vram.reclaim.parking import Moved, Parking, Recovered, Unjournaled


def add_pids_argument(parser: ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument("pids", nargs="*" if optional else "+", metavar="PID", help="the processes' pids")


def numbers(words: Sequence[str]) -> list[int]:
    """Pids as they were typed, each once."""
    for word in words:
        if not (word.isascii() and word.isdigit() and 0 < int(word) < 1 << 22):
            raise UsageError(f"{word!r} is not a pid", hint="write it like 4711; `vram who` lists them")
    return list(dict.fromkeys(map(int, words)))


def say(text: str) -> None:
    """Print a sentence for people, on standard error."""
    if sys.stderr is not None:
        print(f"vram: {inert(text)}", file=sys.stderr, flush=True)


@contextmanager
def refusals_logged(action: str, pids: Sequence[int]) -> Iterator[None]:
    """A request for a process that the user may not touch is logged, as an action is."""
    try:
        yield
    except (NotPermitted, Protected) as error:
        from vram.reclaim import audit

        audit.log_refusal({"action": action, "message": str(error), "pids": list(pids)})
        raise


def recover(parking: Parking) -> tuple[Recovered, ...]:
    """Undo what a vram that died left behind, and say so."""
    words = {
        "unlocked": "was left locked by a vram that was killed; it is running again",
        "brought back": "was left parked by a `vram borrow` that was killed; it is back on its GPU",
        "no room": "was left parked by a `vram borrow` that was killed; its GPU has no room for it yet",
    }
    found = parking.recover() if parking.journal.entries() else ()
    for bad in parking.journal.set_aside:
        kept = f"; it is kept as {bad.kept_as}" if bad.kept_as else ""
        say(f"journal entry {bad.name} is not used: {bad.reason}{kept}")
    for each in found:
        pid = each.entry.target.process.pid
        if each.done in words:
            say(f"pid {pid} {words[each.done]}")
        if each.detail:
            say(f"pid {pid}: {each.detail}")
    return found


def warn_of_unasked(unjournaled: Unjournaled) -> None:
    """Say where the driver may know of more parked processes than it reported."""
    if unjournaled.unknown_state:
        say(unjournaled.unknown_state)
    for pid in unjournaled.silent:
        say(f"the driver does not answer about pid {pid}: whether it is parked is unknown")
    if not unjournaled.complete:
        say("the driver did not report on every process in time: more may be parked")


def parked_sentence(moved: Moved) -> str:
    entry = moved.entry
    pid, nbytes = entry.target.process.pid, size(entry.nbytes)
    return f"parked pid {pid} ({name(entry)}): {nbytes} moved from {gpus(entry)} to host memory"


def unparked_sentence(moved: Moved) -> str:
    entry = moved.entry
    what = f", {size(entry.nbytes)} on {gpus(entry)}" if entry.shares else ""
    return f"pid {entry.target.process.pid} ({name(entry)}) is running again{what}"


def name(entry: Parked) -> str:
    command = inert(entry.target.command)
    return command if len(command) <= 40 else command[:39] + "…"


def gpus(entry: Parked) -> str:
    return "GPU " + ", ".join(str(share.gpu) for share in entry.shares)
