"""``vram inside``: the arrays of a running Python process, and who refers to them."""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser, add_attach_arguments, narrowed, wanted_via
from vram.cli.source import open_host, require_driver, take_whole_ledger
from vram.cli.terminal import add_terminal_arguments, emit, show

HELP = "list a Python process's GPU arrays and what refers to them"

DEADLINE_S = 15.0

_EPILOG = """\
The process needs no preparation and no vram installed. It keeps running: the search works in short
slices with pauses, runs no code of the objects it finds, and leaves nothing behind. It finds arrays
of PyTorch, CuPy, JAX, Numba, PyCUDA, cuda.core and vram.Buffer. Inside a program, vram.live() and
vram.holders() report the same."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_pid("pid", help="the process to query")
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU[,GPU...]",
        help="only arrays on these GPUs, by number, UUID or PCI address (repeatable)",
    )
    parser.add_size(
        "--min-size",
        default=0,
        help="only arrays of at least this size, e.g. 10MiB; faster, as fewer names are searched",
    )
    parser.add_flag("-v", "--all", help="show every row, not only the largest")
    add_attach_arguments(parser, DEADLINE_S)
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host(args)
    assert host is not None
    from vram.errors import ExitCode
    from vram.reclaim.inside import look_inside, only

    ledger = take_whole_ledger(args, host)
    chosen = narrowed(ledger, args.gpu)
    require_driver(ledger)
    receipt = look_inside(host, ledger, args.pid, wanted_via(args), args.deadline, args.min_size)
    receipt = only(receipt, {gpu.index for gpu in chosen.gpus} if args.gpu else None, args.min_size)
    if args.json:
        from vram.report import json_reports

        emit(json_reports.inside(receipt))
    else:
        from vram.report.inside import inside

        show(args, lambda options: inside(receipt, options, everything=args.all))
    return ExitCode.OK
