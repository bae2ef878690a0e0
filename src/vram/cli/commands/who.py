"""``vram who``: everyone who holds GPU memory, as a tree."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, emit, render_options, show

NAME = "who"
HELP = "holders as a tree: container or job, process, forked children, what each holds"
GROUPS = ("job", "pod", "container", "notebook", "unit", "user")


def add_arguments(parser: ArgumentParser) -> None:
    add_source_arguments(parser)
    parser.add_argument(
        "--by",
        choices=GROUPS,
        help="sum by this instead of by whatever says most about each process",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host(args)
    from vram.report.process_tree import who

    ledger = take_ledger(args, host)
    report = who(ledger, args.by)
    if args.json:
        from vram.report.json import encode

        emit(encode(report))
        require_driver(ledger)
        return completeness(ledger)
    require_driver(ledger)
    from vram.report import tree

    options = render_options(args)
    show(tree.who(report, options), args, options)
    return completeness(ledger)
