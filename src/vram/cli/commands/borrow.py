"""``vram borrow``: make room on a GPU, run a command in it, and return the room.

    vram borrow 20GiB -- python train.py
    vram borrow 8GiB --gpu 1 --pid 4711 -- ./evaluate

The command has the terminal and gets our signals; its exit code is ours. Whoever made room is
brought back when it ends, however it ends, and also when vram itself is killed: then as soon
as the command has ended.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, accept_old_option, add_yes_argument
from vram.cli.parking import numbers, recover
from vram.cli.prestart import open_host
from vram.cli.terminal import Progress, say
from vram.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vram.model.parking import Parked
    from vram.reclaim.parking import Moved

VISIBLE = "CUDA_VISIBLE_DEVICES"

HELP = "park your idle processes, run a command, resume them"

USAGE = "vram borrow SIZE [--gpu N] [--pid PID[,PID...]] -- COMMAND..."
EPILOG = """\
Nothing is parked if there is room already. Only your own processes are parked, idle ones
first, never a part of the system; --pid limits it to these. With several GPUs,
CUDA_VISIBLE_DEVICES is set to the one with room; if you have set it, it stays, and room
is made on one of those GPUs."""


def add_arguments(parser: Parser) -> None:
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.add_size("size", help="memory that the command needs, e.g. 20GiB")
    parser.add_argument(
        "--gpu", type=int, metavar="N", help="make room on this GPU (default: where the least must move)"
    )
    pid = parser.add_argument(
        "--pid",
        dest="lenders",
        action="append",
        default=[],
        metavar="PID[,PID...]",
        help="park only these processes (repeatable)",
    )
    accept_old_option(parser, pid, "--from")
    add_yes_argument(parser)
    parser.add_flag("--quiet", "-q", help="print only errors")


def run(args: argparse.Namespace) -> int:
    if not args.command:
        raise UsageError("no command given", hint="for example: vram borrow 20GiB -- python train.py")
    pids = numbers([word for words in args.lenders for word in words.split(",")])
    host = open_host(parks=True)
    from vram.reclaim.audit import refusals_logged
    from vram.reclaim.borrow import park_all, plan_borrow, unpark_all
    from vram.reclaim.parking import Parking
    from vram.reclaim.preflight import read_driver
    from vram.report.phrases import parked_sentence, unparked_sentence
    from vram.virtualgpu import launch

    progress = Progress()

    def begin(doing: str) -> Callable[[int, int], None]:
        return lambda pid, nbytes: progress.begin(f"{doing} pid {pid}", nbytes)

    def done(sentence: Callable[[Parked], str]) -> Callable[[Moved], None]:
        def tell(moved: Moved) -> None:
            progress.end()
            if not args.quiet:
                say(sentence(moved.entry))

        return tell

    with Parking(host, progress.watch) as parking:
        recover(parking)
        variables = dict(os.environ)
        with refusals_logged("borrow", pids):
            visible = variables.get(VISIBLE)
            plan = plan_borrow(host, read_driver(host), args.size, gpu=args.gpu, visible=visible, pids=pids)
        if plan.is_one_of_several:
            variables.setdefault(VISIBLE, plan.uuid)
        if not plan.chosen:
            parking.end_worker()

        def resume_after(pid: int) -> None:
            """Have the checkpoint worker resume all when the command ends, also if vram is killed before."""
            handle = host.signals.open(pid)
            if handle is not None and plan.chosen:
                parking.worker.until(handle)
                handle.close()

        parked = park_all(parking, plan, begin("parking"), done(parked_sentence))
        # From here on signals are for the command; ours wait until all are resumed.
        with launch.signals_held() as mask:
            try:
                code = launch.run(args.command, variables, mask, resume_after)
            finally:
                errors = unpark_all(parking, parked, begin("resuming"), done(unparked_sentence))
                progress.end()
                for error in errors:
                    say(f"{error}; `vram park` lists it, and the next vram command tries again")
        return code or (ExitCode.CANNOT_PARK if errors else ExitCode.OK)
