"""``vram unpark``: bring parked processes back to their GPU."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.parking import add_pids_argument, back, numbers, open_host, say, tidy
from vram.cli.source import seconds_or_none
from vram.cli.terminal import emit
from vram.errors import CannotPark, NoSuchProcess, UsageError
from vram.units import counted

if TYPE_CHECKING:
    from vram.model.parking import Parked
    from vram.reclaim.parking import Parking

NAME = "unpark"
HELP = "bring parked processes back to their GPU, with everything they had there"

_EPILOG = """\
The GPU must have room for all of a process again: that is read right before the driver
is asked, because a process that is brought back to a full GPU is stuck for good."""


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
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    if bool(pids) == args.all:
        raise UsageError("say whom to bring back", hint="`vram unpark PID…` or `vram unpark --all`")
    host = open_host(read_ahead=False)
    from vram.cli.moves import Moves
    from vram.reclaim.parking import Parking

    moves = Moves(args.json, back)
    with Parking(host, moves.progress.watch) as parking:
        tidy(parking)
        for entry in _entries(parking, pids):
            pid = entry.target.process.pid
            with moves.attempt(f"bringing pid {pid} back", pid, entry.nbytes):
                moves.done(parking.unpark(entry, room_patience_s=args.wait))
    if args.json:
        emit(moves.json())
    return moves.exit_code


def _entries(parking: Parking, pids: list[int]) -> list[Parked]:
    known = {entry.target.process.pid: entry for entry in parking.journal.entries()}
    elsewhere = {entry.target.process.pid for entry in parking.journal.elsewhere()}
    for pid in pids:
        if pid not in known:
            raise _unknown(pid, elsewhere)
    if elsewhere and not pids:
        say(f"parked in another PID namespace, and left alone: {counted(len(elsewhere), 'process')}")
    return [known[pid] for pid in pids] if pids else list(known.values())


def _unknown(pid: int, elsewhere: set[int]) -> CannotPark | NoSuchProcess:
    import os

    if pid in elsewhere:
        return CannotPark(
            f"pid {pid} was parked in another PID namespace, and only there does the number mean it",
            hint=f"run `vram unpark {pid}` there",
        )
    if not os.path.exists(f"/proc/{pid}"):
        return NoSuchProcess(f"there is no process {pid}", hint="`vram parked` lists those that are parked")
    return CannotPark(
        f"pid {pid} is not in your journal of parked processes",
        hint="`vram parked` lists those that are; what another user parked, that user brings back",
    )
