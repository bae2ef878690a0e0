"""``vram trim``: live processes release what they only cache, and continue to work."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.trimming import EPILOG, add_trim_arguments, trim_named

NAME = "trim"
HELP = "make a live Python process release what it only caches; it continues to work"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_trim_arguments(parser, pids="+")


def run(args: Namespace) -> int:
    return trim_named(args)
