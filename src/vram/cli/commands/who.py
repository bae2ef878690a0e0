"""``vram who``: everyone who holds GPU memory, as a tree."""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser
from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, emit_json, show

HELP = "holders as a tree: container or job, process, forked children, what each holds"
GROUPS = ("job", "pod", "container", "notebook", "unit", "user")


def add_arguments(parser: Parser) -> None:
    add_source_arguments(parser)
    parser.add_argument(
        "--by", choices=GROUPS, help="sum by this instead of by whatever says most about each process"
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host(args)
    from vram.report import tree
    from vram.report.process_tree import who

    ledger = take_ledger(args, host)
    report = who(ledger, args.by)
    # Scripts get their object even where there is no driver: its probes say why.
    if args.json:
        emit_json(report)
    require_driver(ledger)
    if not args.json:
        show(args, lambda options: tree.who(report, options))
    return completeness(ledger)
