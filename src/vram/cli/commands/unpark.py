"""``vram unpark``: bring parked processes back to their GPU."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import seconds_or_none
from vram.cli.parking import (
    add_pids_argument,
    back,
    denials_written_down,
    numbers,
    say,
    say_what_was_not_asked,
    tidy,
)
from vram.cli.prestart import open_host
from vram.cli.terminal import emit
from vram.errors import CannotPark, UsageError
from vram.units import counted

if TYPE_CHECKING:
    from vram.model.parking import Parked
    from vram.reclaim.parking import Parking

NAME = "unpark"
HELP = "bring parked processes back to their GPU, with everything they had there"

_EPILOG = """\
The GPU must have room for all of a process again: that is read right before the driver
is asked, because a process that is brought back to a full GPU is stuck for good.
A process that the driver says is parked is brought back even where no journal entry
tells of it. What it needs is not known then: at most all of its own host memory, which
must be free on every GPU that it may use, unless --anyway."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser, optional=True)
    parser.add_argument("--all", action="store_true", help="everybody whom you have parked")
    parser.add_argument(
        "--wait",
        type=seconds_or_none,
        default=0.0,
        metavar="S",
        help="wait so long for a full GPU to have room",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="leave it to the driver whether there is room, where no journal entry tells what is needed",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    if bool(pids) == args.all:
        raise UsageError("say whom to bring back", hint="`vram unpark PID…` or `vram unpark --all`")
    host = open_host(reads_driver=False, parks=True)
    from vram.cli.moves import Moves
    from vram.reclaim.parking import Parking

    moves = Moves(args.json, back)
    with Parking(host, moves.progress.watch) as parking:
        tidy(parking)
        with denials_written_down("unpark", pids):
            entries = _named(parking, pids, args.anyway) if pids else _everybody(parking)
        for entry in entries:
            pid = entry.target.process.pid
            with moves.attempt(f"bringing pid {pid} back", pid, entry.nbytes):
                moves.done(parking.unpark(entry, room_patience_s=args.wait))
    if args.json:
        emit(moves.json())
    return moves.exit_code


def _named(parking: Parking, pids: list[int], despite_room: bool) -> list[Parked]:
    elsewhere = {entry.target.process.pid for entry in parking.journal.elsewhere()}
    for pid in pids:
        if pid in elsewhere and parking.journal.find(pid) is None:
            raise CannotPark(
                f"pid {pid} was parked in another PID namespace, and only there does the number mean it",
                hint=f"run `vram unpark {pid}` there",
            )
    return [parking.entry_of(pid, despite_room=despite_room) for pid in pids]


def _everybody(parking: Parking) -> list[Parked]:
    """Whom the journal names; of others who are parked nobody knows by whom, and they must be named."""
    entries = list(parking.journal.entries())
    elsewhere = parking.journal.elsewhere()
    if elsewhere:
        say(f"parked in another PID namespace, and left alone: {counted(len(elsewhere), 'process')}")
    beside = parking.beside_the_journal([entry.target.process.pid for entry in entries])
    say_what_was_not_asked(beside)
    for found in beside.processes:
        pid = found.target.process.pid
        say(f"pid {pid} is {found.state} too, but not in the journal: `vram unpark {pid}` lets it run again")
    return entries
