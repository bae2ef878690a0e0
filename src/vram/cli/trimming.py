"""``vram trim``: the arguments, one trim after the other, what was freed, and who could be trimmed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from vram.cli.arguments import add_attach_arguments, add_yes_argument, pid_number, wanted_via
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, emit, render_options, show
from vram.errors import ExitCode, Refused, TargetDied, VramError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.inside import TrimReceipt
    from vram.reclaim.actions.trim import TrimOrder

DEADLINE_S = 5.0

EPILOG = """\
Ways to attach, safest first: an agent that the process started itself (vram.agent()), its Jupyter
connection file, Python 3.14's debugger interface (remote-exec), and for CPython 3.9 to 3.14 ptrace.
The last two stop the process for about a millisecond; no debugger is needed. The process then
empties the caches of PyTorch, CuPy, JAX, Numba, PyCUDA, cuda.core, RMM and the driver's pools, if
they are loaded. The freed memory is then measured with the driver. Arrays that only reference
cycles hold stay, unless --collect is given; `vram inside PID` lists them.

Without PID nothing is touched: it lists the processes whose caches can be released, with the
command to run, and why the others cannot. Its exit codes:
  0  some caches can be released, or no memory is held
  9  memory is held, and no caches can be released from here

In your own program, `vram.flush()` does it from inside, and says what holds the rest."""


def add_trim_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pid",
        nargs="*",
        type=pid_number,
        metavar="PID",
        help="the process to trim (default: list candidates)",
    )
    parser.add_argument(
        "--tracebacks",
        action="store_true",
        help="also drop the last exception: its frames keep their variables alive",
    )
    parser.add_argument(
        "--collect",
        action="store_true",
        help="first run a full garbage collection in it: all its threads wait, about 0.3 s for each "
        "million objects",
    )
    add_attach_arguments(parser, DEADLINE_S)
    add_yes_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def list_trimmable(args: Namespace) -> int:
    """Print whose caches could be released; nobody is touched. Returns the exit code."""
    host = open_host()
    from vram.reclaim.actions.trim import trimmable
    from vram.report import trimming

    report = trimming.trimmable_report(trimmable(host, wanted_via(args), args.deadline or DEADLINE_S))
    if args.json:
        from vram.report.json import encode

        emit(encode(report))
    else:
        options = render_options(args)
        show(trimming.trimmable(report, options), args, options)
    return ExitCode.NOTHING_FOUND if report.refused and not report.trimmable else ExitCode.OK


def trim_named(args: Namespace) -> int:
    """Trim the processes of *args*, and print what was freed. Returns the exit code."""
    host = open_host()
    from vram.reclaim.actions.trim import prepare_trims

    orders = prepare_trims(host, args.pid, wanted_via(args), args.deadline)
    receipts, refusals = _each(args, host, orders, args.deadline)
    if args.json:
        from vram.report.json import encode
        from vram.report.trimming import TrimReport

        refused = tuple({"pid": pid, "message": str(error)} for pid, error in refusals)
        emit(encode(TrimReport(trimmed=tuple(receipts), refused=refused)))
    return ExitCode.PARTIAL if refusals else ExitCode.OK


def _each(
    args: Namespace, host: LocalHost, orders: tuple[TrimOrder, ...], deadline_s: float
) -> tuple[list[TrimReceipt], list[tuple[int, VramError]]]:
    """One after the other; where there are several, one that does not answer does not stop the others."""
    from vram.reclaim.actions.trim import trim

    receipts: list[TrimReceipt] = []
    refusals: list[tuple[int, VramError]] = []
    for order in orders:
        try:
            receipts.append(trim(host, order, deadline_s, tracebacks=args.tracebacks, collect=args.collect))
        except (Refused, TargetDied) as error:
            if len(orders) == 1:
                raise
            refusals.append((order.target.process.pid, error))
            _say(args, f"{error}\n")
        else:
            _say(args, receipts[-1])
    return receipts, refusals


def _say(args: Namespace, what: Any) -> None:
    if args.json:
        return
    look = render_options(args)
    if isinstance(what, str):
        show(look.clean(what), args, look)
        return
    from vram.report.trimming import trimmed

    show(trimmed(what, look), args, look)
