"""``vram park``: move a process's whole GPU memory, context included, into host memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from vram.cli.arguments import add_yes_argument, read_duration
from vram.cli.parking import add_pids_argument, numbers, recover
from vram.cli.prestart import open_host
from vram.cli.terminal import emit
from vram.units import counted

if TYPE_CHECKING:
    from vram.host.ports import Host

NAME = "park"
HELP = "move a process's GPU memory to host memory and stop the process"
_EPILOG = """\
The process is stopped (SIGSTOP) until `vram unpark`; its parent sees that, and a shell prints
"Stopped". Do not continue it by `fg` or SIGCONT: without its memory, ordinary CUDA calls kill
it. The contents of its GPU memory, including secrets, are in host memory. Several processes
are parked as one: all of them, or none.

Checked before anything is touched: driver 570 or later, permission for ptrace, no MIG, no
MPS, no managed memory, no NCCL peers, no system calls that it has given up (seccomp), enough
host memory plus a reserve. The driver refuses memory shared with other processes and programs
under a profiler; they keep running. If vram is interrupted, fails or is killed, what was
started is undone."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_argument(
        "--lock-timeout",
        type=read_duration,
        default=10.0,
        metavar="DURATION",
        help="wait up to this long for GPU work in progress (default: 10s)",
    )
    parser.add_argument("--tree", action="store_true", help="also their descendants that hold GPU memory")
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="with NCCL peers or managed memory, let the driver decide",
    )
    add_yes_argument(parser)
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
        report = read_driver(host)
        if args.tree:
            pids = _with_descendants(host, report.listed, pids)
        with refusals_logged("park", pids):
            orders = parks.check_all(host, parking, report, pids, anyway=args.anyway)
        nbytes = sum(share.nbytes for _, shares in orders for share in shares)
        with parks.attempt(f"parking {_named(pids)}", pids, nbytes):
            for moved in parking.park_together(orders, lock_timeout_s=args.lock_timeout):
                parks.done(moved)
    if args.json:
        emit(parks.json())
    return parks.exit_code


def _with_descendants(host: Host, on_gpu: Collection[int], pids: Sequence[int]) -> list[int]:
    """*pids* and their descendants that hold GPU memory; a launcher without any stands for its workers."""
    found: dict[int, None] = {}
    for pid in pids:
        workers = [each for each in host.proc.descendants(pid) if each in on_gpu]
        found.update(dict.fromkeys(workers if workers and pid not in on_gpu else (pid, *workers)))
    return list(found)


def _named(pids: Sequence[int]) -> str:
    return f"pid {pids[0]}" if len(pids) == 1 else counted(len(pids), "process")
