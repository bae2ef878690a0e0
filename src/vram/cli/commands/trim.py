"""``vram trim``: live processes let go of what they only cache, and go on working."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.trimming import EPILOG, add_trim_arguments, trim_named

NAME = "trim"
HELP = "a live Python process gives back what it only caches, and goes on working"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_trim_arguments(parser, pids="+")


def run(args: Namespace) -> int:
    return trim_named(args)
