"""``vram ps``: the table of processes alone, for eyes, grep and scripts."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from vram.cli.arguments import Parser
from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, emit_json, show

HELP = "the processes that hold GPU memory, one a line; for grep and scripts"

SORTS = ("trouble", "size", "gpu", "pid", "user", "age", "state", "command")
COLUMNS = ("gpu", "size", "bytes", "pid", "ppid", "user", "age", "state", "workers", "group", "command")


def add_arguments(parser: Parser) -> None:
    add_source_arguments(parser)
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default="trouble",
        help="order of the lines: trouble first and then size, or one column (default: %(default)s)",
    )
    parser.add_flag("--reverse", help="turn the order round")
    parser.add_argument(
        "--columns", type=_columns, metavar="NAME[,NAME...]", help=f"show these columns: {', '.join(COLUMNS)}"
    )
    parser.add_flag(
        "--all", help="a line for each worker and for each process that only has a GPU's files open"
    )
    parser.add_flag("--no-header", help="leave out the line of headings")
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise ArgumentTypeError(f"there is no column {name!r}: there are {', '.join(COLUMNS)}")
    return names


def run(args: Namespace) -> int:
    host = open_host(args)
    from vram.report import process_rows

    ledger = take_ledger(args, host)
    found = process_rows.rows(ledger, every_process=args.all)
    found = process_rows.in_order(found, args.sort, reverse=args.reverse)
    # Scripts get their object even where there is no driver: its probes say why.
    if args.json:
        emit_json(process_rows.report(ledger, found))
    require_driver(ledger)
    if not args.json:
        from rich.console import Group

        from vram.report.process_table import USUAL, process_lines

        columns, heading = args.columns or USUAL, not args.no_header
        show(args, lambda options: Group(*process_lines(found, options, columns=columns, heading=heading)))
    return completeness(ledger)
