"""``vram trim``: live processes release what they only cache, and continue to work.

vram trim 4711       its caches are released, and what was freed is measured
vram trim            touches nothing: whose caches could be released, and why not the others'
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_attach_arguments, add_yes_argument, wanted_via
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, emit_json, show, show_report
from vram.cpython_layouts import SUPPORTED
from vram.errors import ExitCode, Refused, TargetDied, VramError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vram.model.inside import TrimReceipt
    from vram.report.layout import RenderOptions

HELP = "make a running process release its cached memory; without PID, list candidates"

DEADLINE_S = 5.0

_EPILOG = f"""\
Ways to attach to a Python, safest first: an agent that the process started itself (vram.agent()), its
Jupyter connection file, Python 3.14's debugger interface (remote-exec), and for CPython {SUPPORTED}
ptrace. The last two stop the process for about a millisecond; no debugger is needed. The process then
empties the caches of PyTorch, CuPy, JAX, Numba, PyCUDA, cuda.core, RMM and the driver's pools, if
they are loaded. Arrays that only reference cycles hold stay, unless --collect is given; `vram inside
PID` lists them.

Any other program with glibc (C, C++, Rust) is entered by "native": one thread of it that
waits, usually the CUDA driver's own, stops for about a millisecond and loads a small library. That trims
the driver's pools (the default and the current pool of each device, and that of CUDA graphs) and
unloads itself. No driver lists other pools that a program made (cudaMemPoolCreate): they stay.

The freed memory is then measured with the driver.

Without PID nothing is touched: it lists the processes whose caches can be released, with the
command to run, and why the others cannot. Its exit codes:
  0  some caches can be released, or no memory is held
  9  memory is held, and no caches can be released from here

In your own program, `vram.flush()` does it from inside, and says what holds the rest."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_pid("pid", nargs="*", help="the process to trim (default: list candidates)")
    parser.add_flag(
        "--tracebacks", help="also drop the last exception: its frames keep their variables alive"
    )
    parser.add_flag(
        "--collect",
        help="first run a full garbage collection in it: all its threads wait, about 0.3 s for each "
        "million objects",
    )
    add_attach_arguments(parser, DEADLINE_S)
    add_yes_argument(parser)
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    return _trim_named(args) if args.pid else _list_trimmable(args)


def _list_trimmable(args: Namespace) -> int:
    """Print whose caches could be released; no process is touched. Returns the exit code."""
    host = open_host()
    from vram.reclaim.actions.trim import trimmable
    from vram.report import inside

    report = inside.trimmable_report(trimmable(host, wanted_via(args), args.deadline or DEADLINE_S))
    show_report(args, report, lambda options: inside.trimmable(report, options))
    return ExitCode.NOTHING_FOUND if report.refused and not report.trimmable else ExitCode.OK


def _trim_named(args: Namespace) -> int:
    """Trim one process after the other; one of several that refuses does not stop the others."""
    host = open_host()
    from vram.reclaim.actions.trim import prepare_trims, trim
    from vram.report.inside import TrimReport, trimmed

    orders = prepare_trims(host, args.pid, wanted_via(args), args.deadline)
    receipts: list[TrimReceipt] = []
    refusals: list[tuple[int, VramError]] = []
    for order in orders:
        try:
            receipt = trim(host, order, args.deadline, tracebacks=args.tracebacks, collect=args.collect)
        except (Refused, TargetDied) as error:
            if len(orders) == 1:
                raise
            refusals.append((order.target.process.pid, error))
            shown: Callable[[RenderOptions], RenderableType] = partial(_refusal_text, error)
        else:
            receipts.append(receipt)
            shown = partial(trimmed, receipt)
        if not args.json:
            show(args, shown)
    if args.json:
        refused = tuple({"pid": pid, "message": str(error)} for pid, error in refusals)
        emit_json(TrimReport(trimmed=tuple(receipts), refused=refused))
    return ExitCode.PARTIAL if refusals else ExitCode.OK


def _refusal_text(error: VramError, options: RenderOptions) -> str:
    return options.clean(f"{error}\n")
