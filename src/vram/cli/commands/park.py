"""``vram park``: move a process's whole GPU memory, context included, into host memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import seconds
from vram.cli.parking import add_pids_argument, away, denials_written_down, numbers, tidy
from vram.cli.prestart import open_host
from vram.cli.terminal import emit

NAME = "park"
HELP = "move a process's GPU memory into host memory, context included; it waits until `vram unpark`"

_EPILOG = """\
The process lives on; its next CUDA call waits until it is brought back. What was on
the GPU then lies in host memory, secrets too. Checked before anything is touched:
driver 570 or later, no MIG, no MPS, no managed memory, no NCCL peers, enough host
memory beside a reserve. Memory shared with others is refused by the driver, and the
process runs on. Ctrl-C, an error or the death of vram undo what was begun."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_argument(
        "--lock-timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="wait so long for the work that a process has on the GPU (default: %(default)g)",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="let the driver decide where only signs speak against it: NCCL peers, managed memory",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    host = open_host(parks=True)
    from vram.cli.moves import Moves
    from vram.reclaim.parking import Parking
    from vram.reclaim.preflight import look

    moves = Moves(args.json, away)
    with Parking(host, moves.progress.watch) as parking:
        tidy(parking)
        with denials_written_down("park", pids):
            orders = moves.admitted(host, parking, look(host), pids, despite_signs=args.anyway)
        for target, shares in orders:
            nbytes = sum(share.nbytes for share in shares)
            with moves.attempt(f"parking pid {target.process.pid}", target.process.pid, nbytes):
                moves.done(parking.park(target, shares, lock_timeout_s=args.lock_timeout))
    if args.json:
        emit(moves.json())
    return moves.exit_code
