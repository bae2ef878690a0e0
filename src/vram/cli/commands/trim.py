"""``vram trim``: live processes release what they only cache, and continue to work.

vram trim 4711       its caches are released, and what was freed is measured
vram trim            touches nobody: whose caches could be released, and why not the others'
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.trimming import EPILOG, add_trim_arguments, list_trimmable, trim_named

NAME = "trim"
HELP = "make a running Python process release its cached memory; without PID, list candidates"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_trim_arguments(parser)


def run(args: Namespace) -> int:
    return trim_named(args) if args.pid else list_trimmable(args)
