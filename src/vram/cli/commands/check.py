"""``vram check``: is this GPU clean? The exit code is the answer.

0: nothing is held beyond what the driver reserves. 1: something is. 3: unknown.
"""

from __future__ import annotations

import time
from argparse import Namespace

from vram.cli.arguments import Parser
from vram.cli.source import add_source_arguments, open_host, require_driver, take_ledger
from vram.cli.terminal import emit
from vram.errors import DriverMissing, ExitCode, UsageError, VramError

HELP = "for scripts: exit 0 if clean, 1 if memory is held, 3 if unknown"

_PAUSE_S = 0.5

_EPILOG = """\
exit codes:
  0  nothing is held beyond what the driver reserves
  1  memory is held; one line for each holder
  2  the call was wrong
  3  unknown: no driver, or a GPU that did not answer

--leftovers counts only memory that no healthy process accounts for: orphaned or
exported memory, memory of a dead, exiting or stopped process, and memory without
a known holder. Memory of a process that is not visible from here is "unknown".
--orphans adds what a job holds whose launcher is dead (VR208)."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_source_arguments(parser)
    parser.add_flag("--leftovers", help="count only memory that no healthy process accounts for")
    parser.add_flag("--orphans", help="with --leftovers: also jobs whose launcher is dead")
    parser.add_duration("--wait", help="wait up to this long until it is clean, e.g. 60s")
    parser.add_size("--allow", default=0, help="ignore up to this much on each GPU, e.g. 64MiB")
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_flag("--quiet", "-q", help="print nothing, only set the exit code")


def run(args: Namespace) -> int:
    if args.orphans and not args.leftovers:
        raise UsageError("--orphans is for --leftovers", hint="without --leftovers everything counts")
    if args.wait and args.snapshot:
        raise UsageError("--wait waits for this machine", hint="leave out --from")
    host = open_host(args)
    from vram.diagnosis.verdict import judge, overall, without_driver
    from vram.report import check

    end = time.monotonic() + (args.wait or 0.0)
    while True:
        ledger = take_ledger(args, host)
        verdicts = judge(ledger, leftovers=args.leftovers, orphans=args.orphans, allow=args.allow)
        verdict = overall(verdicts)
        left_s = end - time.monotonic()
        # A driver that is not there does not come within a minute.
        if verdict == "clean" or left_s <= 0 or without_driver(ledger) is not None:
            break
        time.sleep(min(_PAUSE_S, left_s))
    if args.json and not args.quiet:
        emit(check.json(ledger, verdict, verdicts))
    elif not args.quiet:
        from vram.diagnosis.leftover import way_back

        command = way_back(ledger, orphans=args.orphans) if verdict == "held" else None
        emit(check.text(ledger, verdicts, command))
    try:
        require_driver(ledger)
    except DriverMissing as error:
        # Here "no driver" is one more way of not knowing.
        raise VramError(f"unknown: {error}", hint=error.hint) from error
    return {"clean": ExitCode.OK, "held": ExitCode.HELD, "unknown": ExitCode.PARTIAL}[verdict]
