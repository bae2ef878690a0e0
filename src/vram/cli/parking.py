"""What the parking commands share: opening the host, recovery after a vram that died, and messages."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vram.errors import UsageError
from vram.report.escape import inert

if TYPE_CHECKING:
    from vram.reclaim.parking import Parking, Recovered, Unjournaled


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
