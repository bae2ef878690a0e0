"""``vram parked``: what is parked, since when, how large, by whom."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, emit, render_options, show
from vram.errors import ExitCode

NAME = "parked"
HELP = "list parked processes; also clean up after a vram that was killed"

_EPILOG = """\
The driver is queried about each of your processes that use CUDA (as root: everybody's), so
parked or locked ones are listed even without a journal entry. A damaged or impossible
journal entry is reported, renamed and not used."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.cli.parking import recover, warn_of_unasked
    from vram.reclaim.parking import Parking
    from vram.report import parked

    host = open_host(reads_driver=False)
    with Parking(host) as parking:
        found = recover(parking)
        left = {entry.target.process: entry for entry in parking.journal.entries()}
        elsewhere = parking.journal.other_namespaces()
        unjournaled = parking.find_unjournaled([process.pid for process in left])
        set_aside = parking.journal.set_aside
    warn_of_unasked(unjournaled)
    standings = [
        parked.line(left[each.entry.target.process], each.done, each.detail)
        for each in found
        if each.entry.target.process in left
    ]
    standings += [parked.line(entry, parked.ELSEWHERE) for entry in elsewhere]
    standings += [parked.unrecorded_line(entry) for entry in unjournaled.processes]
    told = parked.report(standings, set_aside, host.clock.now())
    if args.json:
        from vram.report.json import encode

        emit(encode(told))
    else:
        look = render_options(args)
        show(parked.text(told, look), args, look)
    return ExitCode.OK
