"""``vram trim``: live processes release what they only cache, and continue to work."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.trimming import EPILOG, add_trim_arguments, trim_named

NAME = "trim"
HELP = "make a running Python process release its cached memory"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_trim_arguments(parser, pids="+")


def run(args: Namespace) -> int:
    return trim_named(args)
