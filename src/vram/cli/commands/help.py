"""``vram help``: the manual page of a command, or what its --help tells where there is no man."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path

from vram.cli.arguments import Parser
from vram.cli.terminal import emit, is_terminal
from vram.errors import ExitCode

HELP = "show the manual page of a command"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="COMMAND", help="the command, or all for a list (default: vram itself)"
    )


def known_names() -> tuple[tuple[str, str], ...]:
    """The commands, for completion."""
    from vram.cli.app import COMMANDS

    return (("all", "every command with its line"), *((name, "") for name in COMMANDS))


def run(args: Namespace) -> int:
    from vram.cli import app

    if args.name == "all":
        emit(app.listing())
        return ExitCode.OK
    if args.name is None or args.name in app.COMMANDS:
        page = installed(args.name)
        if page is not None and _shown(page):
            return ExitCode.OK
    return app.main([args.name, "--help"] if args.name else ["--help"])


def installed(command: str | None) -> Path | None:
    """The manual page of *command*, or of the program; None where it was not installed."""
    from importlib.metadata import PackageNotFoundError, files

    name = f"vram-{command}.1" if command else "vram.1"
    try:
        listed = files("vram") or []
    except PackageNotFoundError:
        return None
    found = (Path(str(each.locate())) for each in listed if each.name == name)
    return next((path for path in found if path.is_file()), None)


def _shown(page: Path) -> bool:
    """Let man show *page*; False where standard output is no terminal, or there is no man."""
    if not is_terminal():
        return False
    try:
        # A path with a slash in it is a file, for man-db and for mandoc.
        return subprocess.run(["man", os.path.abspath(page)]).returncode == 0
    except OSError:
        return False
