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

from vram.cli.arguments import accept_old_option, add_yes_argument
from vram.cli.parking import numbers, recover, say
from vram.cli.prestart import open_host
from vram.errors import ExitCode, UsageError
from vram.units import parse_size

if TYPE_CHECKING:
    from vram.cli.terminal import Progress
    from vram.host.local import LocalHost
    from vram.model.parking import Parked
    from vram.reclaim.borrow import BorrowPlan
    from vram.reclaim.parking import Parking

VISIBLE = "CUDA_VISIBLE_DEVICES"

NAME = "borrow"
HELP = "park your idle processes, run a command, resume them"

USAGE = "vram borrow SIZE [--gpu N] [--pid PID[,PID...]] -- COMMAND..."
EPILOG = """\
Nothing is parked if there is room already. Only your own processes are parked, idle ones
first, never a part of the system; --pid limits it to these. With several GPUs,
CUDA_VISIBLE_DEVICES is set to the one with room; if you have set it, it stays, and room
is made on one of those GPUs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.add_argument(
        "size", type=parse_size, metavar="SIZE", help="memory that the command needs, e.g. 20GiB"
    )
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
    parser.add_argument("--quiet", "-q", action="store_true", help="print only errors")


def run(args: argparse.Namespace) -> int:
    if not args.command:
        raise UsageError("no command given", hint="for example: vram borrow 20GiB -- python train.py")
    pids = numbers([word for words in args.lenders for word in words.split(",")])
    host = open_host(parks=True)
    from vram.cli.terminal import Progress
    from vram.reclaim.audit import refusals_logged
    from vram.reclaim.borrow import plan_borrow
    from vram.reclaim.parking import Parking
    from vram.reclaim.preflight import read_driver

    progress = Progress()
    with Parking(host, progress.watch) as parking:
        recover(parking)
        with refusals_logged("borrow", pids):
            visible = os.environ.get(VISIBLE)
            plan = plan_borrow(host, read_driver(host), args.size, gpu=args.gpu, visible=visible, pids=pids)
        return _Borrow(host, parking, plan, progress, quiet=args.quiet).run(args.command)


class _Borrow:
    """Parks, runs the command, and brings everybody back."""

    def __init__(
        self, host: LocalHost, parking: Parking, plan: BorrowPlan, progress: Progress, *, quiet: bool
    ) -> None:
        self._host = host
        self._parking = parking
        self._plan = plan
        self._progress = progress
        self._quiet = quiet

    def run(self, command: list[str]) -> int:
        from vram.reclaim.borrow import park_all
        from vram.report.phrases import parked_sentence
        from vram.virtualgpu import launch

        if not self._plan.chosen:
            self._parking.end_worker()
        parked = park_all(
            self._parking,
            self._plan,
            self._about("parking"),
            lambda moved: self._say(parked_sentence(moved.entry)),
        )
        # From here on signals are for the command; ours wait until everybody is back.
        with launch.signals_held() as mask:
            try:
                code = launch.run(command, self._environment(), mask, self._started)
            finally:
                errors = self._return(parked)
        return code or (ExitCode.CANNOT_PARK if errors else ExitCode.OK)

    def _started(self, pid: int) -> None:
        handle = self._host.signals.open(pid)
        if handle is not None and self._plan.chosen:
            self._parking.worker.until(handle)
            handle.close()

    def _environment(self) -> dict[str, str]:
        variables = dict(os.environ)
        if self._plan.is_one_of_several:
            variables.setdefault(VISIBLE, self._plan.uuid)
        return variables

    def _return(self, parked: list[Parked]) -> bool:
        from vram.reclaim.borrow import unpark_all
        from vram.report.phrases import unparked_sentence

        errors = unpark_all(
            self._parking,
            parked,
            self._about("resuming"),
            lambda moved: self._say(unparked_sentence(moved.entry)),
        )
        self._progress.end()
        for error in errors:
            say(f"{error}; `vram park` lists it, and the next vram command tries again")
        return bool(errors)

    def _about(self, doing: str) -> Callable[[int, int], None]:
        return lambda pid, nbytes: self._progress.begin(f"{doing} pid {pid}", nbytes)

    def _say(self, sentence: str) -> None:
        self._progress.end()
        if not self._quiet:
            say(sentence)
