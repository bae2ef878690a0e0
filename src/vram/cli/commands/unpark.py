"""``vram unpark``: bring parked processes back to their GPU."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_yes_argument
from vram.cli.parking import ParkRun, add_pids_argument, numbers, recover, warn_of_unasked
from vram.cli.prestart import open_host
from vram.cli.terminal import say
from vram.errors import UsageError
from vram.units import counted

if TYPE_CHECKING:
    from vram.model.parking import Parked
    from vram.reclaim.parking import Moved, Parking

HELP = "move parked processes back to their GPU and resume them"

_EPILOG = """\
The GPU must have room for all of the process's memory. This is checked right before the
driver call, because a process that is unparked to a full GPU hangs for good.
A process that the driver reports as parked is resumed even without a journal entry. Its
size is unknown then: at most all of its host memory, which must be free on every GPU that
it may use, unless --anyway is given.
--gpu N: on another GPU of the same chip (driver 580; on ARM 595). The GPU that it was on takes
N's place for the process where it sees both."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_flag("--all", help="all processes that you parked")
    parser.add_duration("--wait", zero=True, default=0.0, help="wait up to this long for room on a full GPU")
    parser.add_argument("--gpu", type=int, metavar="N", help="bring it back on this GPU, of the same chip")
    parser.add_flag("--anyway", help="without a journal entry, let the driver decide whether there is room")
    add_yes_argument(parser)
    parser.add_flag("--json", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    if bool(pids) == args.all:
        raise UsageError("no pid given", hint="`vram unpark PID…` or `vram unpark --all`")
    if args.gpu is not None and (args.all or args.anyway):
        raise UsageError("--gpu cannot be combined with --all or --anyway", hint="name the process")
    host = open_host(reads_driver=False, parks=True)
    from vram.reclaim.audit import refusals_logged
    from vram.reclaim.parking import Parking
    from vram.reclaim.remap import Remap, plan_remap
    from vram.report.phrases import unparked_sentence

    parks = ParkRun(args.json, unparked_sentence)
    with Parking(host, parks.progress.watch) as parking:
        recover(parking)
        with refusals_logged("unpark", pids):
            entries = parking.entries_of(pids, anyway=args.anyway) if pids else _find_journaled(parking)
            # All of them are judged before the first one is touched.
            moves = [
                Remap(entry, ()) if args.gpu is None else plan_remap(host, entry, args.gpu)
                for entry in entries
            ]
        for move in moves:
            pid = move.entry.target.process.pid
            if move.entry.purpose == "sleep":
                # Its waker has the claim on it.
                with parks.attempt(f"waking pid {pid}", [pid], move.entry.nbytes):
                    parks.done(_wake(move.entry))
                continue
            with parks.attempt(f"resuming pid {pid}", [pid], move.entry.nbytes):
                parks.done(parking.unpark(move.entry, room_patience_s=args.wait, pairs=move.pairs))
    return parks.finish()


def _wake(entry: Parked) -> Moved:
    from time import monotonic

    from vram.reclaim.parking import Moved
    from vram.sleeping import client

    began = monotonic()
    client.ask("wake", [(entry.target.process.pid, 0)])
    return Moved(entry, monotonic() - began, 0.0)


def _find_journaled(parking: Parking) -> list[Parked]:
    """Those in the journal. Who parked any others is unknown: they must be named."""
    journaled = parking.journal.entries()
    entries = [entry for entry in journaled if entry.purpose != "sleep"]
    if len(entries) < len(journaled):
        asleep = counted(len(journaled) - len(entries), "process")
        say(f"skipped, asleep: {asleep}; `vram wake --all` wakes them")
    elsewhere = parking.journal.other_namespaces()
    if elsewhere:
        say(f"skipped, parked in another PID namespace: {counted(len(elsewhere), 'process')}")
    unjournaled = parking.find_unjournaled([entry.target.process.pid for entry in journaled])
    warn_of_unasked(unjournaled)
    for found in unjournaled.processes:
        pid = found.target.process.pid
        say(f"pid {pid} is {found.state} too, but not in the journal: `vram unpark {pid}` resumes it")
    return entries
