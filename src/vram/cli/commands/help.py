"""``vram help``: the manual page of a command, or what its --help tells where there is no man."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.errors import ExitCode

NAME = "help"
HELP = "the manual page of a command"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="COMMAND", help="a command; without it, vram itself")


def known_names() -> tuple[tuple[str, str], ...]:
    """The commands, for completion."""
    from vram.cli.app import COMMANDS

    return tuple((name, "") for name in COMMANDS)


def run(args: Namespace) -> int:
    from vram.cli import app, manual

    if args.name is None or args.name in app.COMMANDS:
        page = manual.installed(args.name)
        if page is not None and manual.show(page):
            return ExitCode.OK
    return app.main([args.name, "--help"] if args.name else ["--help"])
