"""``vram snapshot``: everything that was seen, in one file that `vram why --from` can judge anywhere."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.source import add_deadline_argument

NAME = "snapshot"
HELP = "write all observations to a file, for a bug report or for `vram why --from`"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to; - is standard output"
    )
    parser.add_argument(
        "--redact", action="store_true", help="leave out user names, command lines and host names"
    )
    add_deadline_argument(parser)


def run(args: Namespace) -> int:
    raise NotImplementedError
