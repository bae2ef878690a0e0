"""``vram reset``: who must be gone before a GPU can be reset; and with --yes the reset itself."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_deadline_argument
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, emit, show
from vram.errors import ExitCode, Refused

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.plan import Receipt
    from vram.reclaim.actions.reset import Readiness

HELP = "show what prevents a GPU reset; with --yes, as root, reset it"

_EPILOG = """\
A reset is the last resort: it helps if `vram why` says that the driver needs one (a pending
row remap, a fault), and it is refused while anybody uses the GPU. vram runs nvidia-smi for
it, and only with --yes, as root, and when no process uses the GPU."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("gpu", type=int, metavar="GPU", help="the GPU's number")
    parser.add_flag("--yes", "-y", help="reset it, if no process uses it")
    parser.add_flag("--json", help="one JSON object instead of text")
    add_deadline_argument(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.reclaim.actions.reset import readiness

    host = open_host(read_ahead_s=args.deadline)
    ready = readiness(host, args.gpu, args.deadline)
    receipt = _reset(args, host, ready) if args.yes and not ready.blockers else None
    _tell(args, ready, receipt)
    if ready.blockers:
        return ExitCode.HELD
    if receipt is None:
        return ExitCode.OK
    return ExitCode.OK if receipt.outcomes[0].status == "done" else ExitCode.PARTIAL


def _reset(args: Namespace, host: LocalHost, ready: Readiness) -> Receipt:
    from vram.reclaim import execute

    try:
        return execute(ready.plan, host=host, deadline_s=args.deadline)
    except Refused:
        _tell(args, ready, None)
        raise


def _tell(args: Namespace, ready: Readiness, receipt: Receipt | None) -> None:
    if args.json:
        from vram.report import json_reports

        emit(json_reports.reset(ready.gpu, ready.blockers, ready.command, receipt, ready.advice))
    else:
        from vram.report import plan

        words = (ready.gpu, ready.blockers, ready.command, receipt)
        show(args, lambda options: plan.reset(*words, options, ready.advice))
