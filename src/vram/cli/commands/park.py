"""``vram park``: move a process's whole GPU memory, context included, into host memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import seconds
from vram.cli.parking import add_pids_argument, numbers, recover
from vram.cli.prestart import open_host
from vram.cli.terminal import emit

NAME = "park"
HELP = "move a process's GPU memory to host memory and pause it"

_EPILOG = """\
The process stays alive; its next CUDA call waits until `vram unpark`. The contents of its
GPU memory, including secrets, are then in host memory. Checked before anything is touched:
driver 570 or later, no MIG, no MPS, no managed memory, no NCCL peers, enough host memory
plus a reserve. The driver refuses memory shared with other processes; the process then
keeps running. If vram is interrupted, fails or is killed, what was started is undone."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_argument(
        "--lock-timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="wait up to S seconds for GPU work in progress (default: %(default)g)",
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="with NCCL peers or managed memory, let the driver decide",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    host = open_host(parks=True)
    from vram.cli.park_report import ParkRun
    from vram.reclaim.audit import refusals_logged
    from vram.reclaim.parking import Parking
    from vram.reclaim.preflight import read_driver
    from vram.report.phrases import parked_sentence

    parks = ParkRun(args.json, parked_sentence)
    with Parking(host, parks.progress.watch) as parking:
        recover(parking)
        with refusals_logged("park", pids):
            orders = parks.check_all(host, parking, read_driver(host), pids, anyway=args.anyway)
        for target, shares in orders:
            nbytes = sum(share.nbytes for share in shares)
            with parks.attempt(f"parking pid {target.process.pid}", target.process.pid, nbytes):
                parks.done(parking.park(target, shares, lock_timeout_s=args.lock_timeout))
    if args.json:
        emit(parks.json())
    return parks.exit_code
