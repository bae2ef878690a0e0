"""``vram doctor``: what this host can and cannot do for vram, and the sentence that changes it."""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser, add_deadline_argument
from vram.cli.source import open_host
from vram.cli.terminal import add_terminal_arguments, emit, show
from vram.errors import ExitCode

HELP = "check what works on this host, and how to fix what does not"

_VERBS = ("why", "who", "check", "free", "trim", "park", "borrow", "kill", "reset", "deep")

_EPILOG = """\
exit codes:
  0  everything that vram needs works
  2  the call was wrong
  4  no NVIDIA driver answers
  7  vram works here, with limits
  8  something that vram needs is broken

Checks marked "optional" never change the exit code. `vram explain CHECK` explains
a check."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "--for",
        dest="verb",
        choices=_VERBS,
        metavar="COMMAND",
        help=f"check only what one command needs: {', '.join(_VERBS)} (deep is `why --deep`)",
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_flag("--verbose", "-v", help="show every check with all details")
    add_deadline_argument(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host(args)
    assert host is not None  # there is no --from here
    from vram.doctor.checks import examine
    from vram.doctor.collect import collect

    collected = collect(host, args.deadline)
    found = examine(collected, args.verb)
    facts, taken_at = collected.survey.host, collected.survey.taken_at
    if args.json:
        from vram.report import json_reports

        emit(json_reports.doctor(found, facts, taken_at))
    else:
        from vram.report import doctor

        show(args, lambda options: doctor.text(found, facts, taken_at, options, verbose=args.verbose))
    return {
        "ready": ExitCode.OK,
        "limited": ExitCode.LIMITED,
        "broken": ExitCode.BROKEN,
        "no-driver": ExitCode.NO_DRIVER,
    }[found.verdict]
