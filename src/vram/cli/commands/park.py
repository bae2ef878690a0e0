"""``vram park``: move a process's whole GPU memory, context included, into host memory.

vram park 4711       until `vram unpark 4711`
vram park            lists what is parked, since when, how large, by whom; moves nothing
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_yes_argument
from vram.cli.parking import ParkRun, add_pids_argument, numbers, recover, warn_of_unasked, with_jobs
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, show_report
from vram.errors import ExitCode, UsageError
from vram.units import counted

if TYPE_CHECKING:
    from vram.host.ports import Host

HELP = "move a process's GPU memory to host memory and stop the process; without PID, list parked ones"
_EPILOG = """\
The process is stopped (SIGSTOP) until `vram unpark`; its parent sees that, and a shell prints
"Stopped". Do not continue it by `fg` or SIGCONT: without its memory, ordinary CUDA calls kill
it. The contents of its GPU memory, including secrets, are in host memory. Several processes
are parked as one: all of them, or none.

Checked before anything is touched: driver 570 or later, permission for ptrace, no MIG, no
MPS, no managed memory, no NCCL peers, no system calls that it has given up (seccomp), enough
host memory plus a reserve. The driver refuses memory shared with other processes and programs
under a profiler; they keep running. If vram is interrupted, fails or is killed, what was
started is undone.

Without PID parked processes are listed, and what a killed vram left is cleaned up. The driver is
queried about each of your processes that use CUDA (as root: everybody's), so parked or locked ones
are listed even without a journal entry. A damaged or impossible journal entry is reported, renamed
and not used."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_duration("--lock-timeout", default=10.0, help="wait up to this long for GPU work in progress")
    parser.add_flag("--tree", help="also their descendants that hold GPU memory")
    parser.add_flag("--job", help="all that was launched together with them and holds GPU memory")
    parser.add_flag("--anyway", help="with NCCL peers or managed memory, let the driver decide")
    add_yes_argument(parser)
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    pids = numbers(args.pids)
    if args.said == "parked" and pids:
        raise UsageError("`vram parked` takes no pid", hint=f"`vram park {pids[0]}` parks it")
    if not pids:
        return _list_parked(args)
    host = open_host(parks=True)
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
        if args.job:
            pids = with_jobs(host, pids)
        with refusals_logged("park", pids):
            orders = parks.check_all(host, parking, report, pids, anyway=args.anyway)
        named = f"pid {pids[0]}" if len(pids) == 1 else counted(len(pids), "process")
        nbytes = sum(share.nbytes for _, shares in orders for share in shares)
        with parks.attempt(f"parking {named}", pids, nbytes):
            for moved in parking.park_together(orders, lock_timeout_s=args.lock_timeout):
                parks.done(moved)
    return parks.finish()


def _list_parked(args: Namespace) -> int:
    option = next((name for name in ("tree", "job", "anyway") if getattr(args, name)), None)
    if option is not None:
        option = f"--{option}"
        raise UsageError(f"{option} needs the processes to park", hint=f"vram park {option} PID")
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
    report = parked.report(standings, set_aside, host.clock.now())
    show_report(args, report, lambda options: parked.text(report, options))
    return ExitCode.OK


def _with_descendants(host: Host, on_gpu: Collection[int], pids: Sequence[int]) -> list[int]:
    """*pids* and their descendants that hold GPU memory; a launcher without any stands for its workers."""
    found: dict[int, None] = {}
    for pid in pids:
        workers = [each for each in host.proc.descendants(pid) if each in on_gpu]
        found.update(dict.fromkeys(workers if workers and pid not in on_gpu else (pid, *workers)))
    return list(found)
