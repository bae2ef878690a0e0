"""``vram borrow``: make room on a GPU, run a command in it, and give the room back.

    vram borrow 20GiB -- python train.py
    vram borrow 8GiB --gpu 1 --from 4711 -- ./evaluate

The command has the terminal and gets our signals; its exit code is ours. Whoever made room is
brought back when it ends, however it ends, and also when vram itself is killed: then as soon
as the command has ended.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from vram.cli.arguments import memory_size
from vram.cli.parking import away, back, denials_written_down, numbers, say, tidy
from vram.cli.prestart import open_host
from vram.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from vram.cli.terminal import Progress
    from vram.host.local import LocalHost
    from vram.model.parking import Parked
    from vram.reclaim.borrow import Loan
    from vram.reclaim.parking import Parking

VISIBLE = "CUDA_VISIBLE_DEVICES"

NAME = "borrow"
HELP = "make room by parking idle processes of yours, run a command in it, bring them back"

USAGE = "vram borrow SIZE [--gpu N] [--from PID[,PID...]] -- COMMAND..."
EPILOG = """\
Nobody is parked where the room is there already. Parked are only processes of yours,
idle ones first, never a part of the system; --from says who alone may be. Where there
are several GPUs, CUDA_VISIBLE_DEVICES is set to the one that has the room; where you
have set it, it stays, and room is made on one of those GPUs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.add_argument("size", type=memory_size, metavar="SIZE", help="room for the command, e.g. 20GiB")
    parser.add_argument(
        "--gpu", type=int, metavar="N", help="on this GPU (default: where the least must move)"
    )
    parser.add_argument(
        "--from", dest="lenders", action="append", default=[], metavar="PID[,PID...]", help="park only these"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="say nothing unless something goes wrong")


def run(args: argparse.Namespace) -> int:
    if not args.command:
        raise UsageError(
            "say what to run, after --", hint="for example: vram borrow 20GiB -- python train.py"
        )
    pids = numbers([word for words in args.lenders for word in words.split(",")])
    host = open_host(parks=True)
    from vram.cli.terminal import Progress
    from vram.reclaim.borrow import arrange
    from vram.reclaim.parking import Parking
    from vram.reclaim.preflight import look

    progress = Progress()
    with Parking(host, progress.watch) as parking:
        tidy(parking)
        with denials_written_down("borrow", pids):
            visible = os.environ.get(VISIBLE)
            loan = arrange(host, look(host), args.size, gpu=args.gpu, visible=visible, pids=pids)
        return _Borrow(host, parking, loan, progress, quiet=args.quiet).run(args.command)


class _Borrow:
    """One loan from its taking to its return."""

    def __init__(
        self, host: LocalHost, parking: Parking, loan: Loan, progress: Progress, *, quiet: bool
    ) -> None:
        self._host = host
        self._parking = parking
        self._loan = loan
        self._progress = progress
        self._quiet = quiet

    def run(self, command: list[str]) -> int:
        from vram.reclaim.borrow import take
        from vram.virtualgpu import launch

        if not self._loan.chosen:
            self._parking.dismiss()
        lent = take(self._parking, self._loan, self._about("parking"), lambda moved: self._say(away(moved)))
        # From here on signals are for the command; ours wait until everybody is back.
        with launch.signals_held() as mask:
            try:
                code = launch.run(command, self._environment(), mask, self._started)
            finally:
                kept = self._return(lent)
        return code or (ExitCode.CANNOT_PARK if kept else ExitCode.OK)

    def _started(self, pid: int) -> None:
        grip = self._host.signals.hold(pid)
        if grip is not None and self._loan.chosen:
            self._parking.worker.until(grip)
            grip.close()

    def _environment(self) -> dict[str, str]:
        variables = dict(os.environ)
        if self._loan.is_one_of_several:
            variables.setdefault(VISIBLE, self._loan.uuid)
        return variables

    def _return(self, lent: list[Parked]) -> bool:
        from vram.reclaim.borrow import give_back

        kept = give_back(
            self._parking, lent, self._about("bringing back"), lambda moved: self._say(back(moved))
        )
        self._progress.end()
        for error in kept:
            say(f"{error}; `vram parked` lists it, and the next vram tries again")
        return bool(kept)

    def _about(self, doing: str) -> Callable[[int, int], None]:
        return lambda pid, nbytes: self._progress.begin(f"{doing} pid {pid}", nbytes)

    def _say(self, sentence: str) -> None:
        self._progress.end()
        if not self._quiet:
            say(sentence)
