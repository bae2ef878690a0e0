"""``vram check``: is this GPU clean? The exit code is the answer.

0: nothing is held beyond what the driver reserves. 1: something is. 3: unknown.
"""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser
from vram.cli.source import add_source_arguments, open_host, require_driver, take_ledger
from vram.cli.terminal import emit
from vram.errors import DriverMissing, ExitCode, VramError

HELP = "for scripts: exit 0 if clean, 1 if memory is held, 3 if unknown"

_EPILOG = """\
exit codes:
  0  nothing is held beyond what the driver reserves
  1  memory is held; one line for each holder
  2  the call was wrong
  3  unknown: no driver, or a GPU that did not answer

--leftovers counts only memory that no healthy process accounts for: orphaned or
exported memory, memory of a dead, exiting or stopped process, and memory without
a known holder. Memory of a process that is not visible from here is "unknown"."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_source_arguments(parser)
    parser.add_flag("--leftovers", help="count only memory that no healthy process accounts for")
    parser.add_size("--allow", default=0, help="ignore up to this much on each GPU, e.g. 64MiB")
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_flag("--quiet", "-q", help="print nothing, only set the exit code")


def run(args: Namespace) -> int:
    host = open_host(args)
    from vram.diagnosis.verdict import judge, overall
    from vram.report import check

    ledger = take_ledger(args, host)
    verdicts = judge(ledger, leftovers=args.leftovers, allow=args.allow)
    verdict = overall(verdicts)
    if args.json and not args.quiet:
        emit(check.json(ledger, verdict, verdicts))
    elif not args.quiet:
        from vram.diagnosis.leftover import way_back

        emit(check.text(ledger, verdicts, way_back(ledger) if verdict == "held" else None))
    try:
        require_driver(ledger)
    except DriverMissing as error:
        # Here "no driver" is one more way of not knowing.
        raise VramError(f"unknown: {error}", hint=error.hint) from error
    return {"clean": ExitCode.OK, "held": ExitCode.HELD, "unknown": ExitCode.PARTIAL}[verdict]
