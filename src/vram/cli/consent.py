"""May it be done? ``--yes`` says so, a person at a terminal is asked, and otherwise it is not."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from vram.cli.terminal import emit, is_terminal
from vram.errors import UsageError

SHORTEST_DIGEST = 8


def add_consent_arguments(parser: ArgumentParser) -> None:
    """Add the options that say whether, and which, plan is run."""
    parser.add_argument("--dry-run", action="store_true", help="only show the plan; nothing is touched")
    parser.add_argument(
        "--yes",
        "-y",
        action="store_true",
        help="run the plan without asking; without it and without a terminal the plan is only shown",
    )
    parser.add_argument(
        "--digest",
        type=_digits,
        metavar="HEX",
        help="run only the plan with this digest (8 digits or more), as an earlier --dry-run showed it",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text; never asks")


def _digits(text: str) -> str:
    # An empty word too is no digest: it is what a script hands over whose variable is unset.
    if len(text) < SHORTEST_DIGEST or set(text.lower()) - set("0123456789abcdef"):
        raise UsageError("--digest needs 8 hexadecimal digits or more", hint="a --dry-run shows them")
    return text.lower()


def may_act(args: Namespace) -> bool:
    """Whether this call can lead to anything being done at all."""
    return not args.dry_run and (args.yes or _person(args))


def given(args: Namespace, question: str) -> bool:
    """Whether to go ahead; asks where a person can answer."""
    if args.dry_run:
        return False
    return bool(args.yes) or (_person(args) and _ask(question))


def _person(args: Namespace) -> bool:
    return not args.json and is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def _ask(question: str) -> bool:
    emit(f"\n{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
