"""``vram parked``: what is parked, since when, how large, by whom."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.terminal import add_terminal_arguments, emit, look_for, show
from vram.errors import ExitCode

NAME = "parked"
HELP = "what is parked: how large, since when, by whom; puts right what a vram that died left behind"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.cli.parking import tidy
    from vram.host.local import LocalHost
    from vram.reclaim.parking import Parking
    from vram.report import parked

    host = LocalHost()
    with Parking(host) as parking:
        found = tidy(parking)
        left = {entry.target.process: entry for entry in parking.journal.entries()}
        elsewhere = parking.journal.elsewhere()
    standings = [
        (left[each.entry.target.process], str(each.done))
        for each in found
        if each.entry.target.process in left
    ]
    standings += [(entry, parked.ELSEWHERE) for entry in elsewhere]
    told = parked.report(standings, host.clock.now())
    if args.json:
        from vram.report.json import encode

        emit(encode(told))
    else:
        look = look_for(args)
        show(parked.text(told, look), args, look)
    return ExitCode.OK
