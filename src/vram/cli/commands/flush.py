"""``vram flush``: for a pid it is ``vram trim``; without one it says whose caches could be emptied."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import wanted_via
from vram.cli.prestart import open_host
from vram.cli.terminal import emit, render_options, show
from vram.cli.trimming import DEADLINE_S, add_trim_arguments, trim_named
from vram.errors import ExitCode

NAME = "flush"
HELP = "release a Python process's caches; without PID, list candidates"

_EPILOG = """\
With PID it is `vram trim PID`. Without PID nothing is touched: it lists the processes whose
caches can be released, with the command to run, and why the others cannot.

exit codes without PID:
  0  some caches can be released, or no memory is held
  9  memory is held, and no caches can be released from here

In your own program, `vram.flush()` does it from inside, and says what holds the rest."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add_trim_arguments(parser, pids="*")


def run(args: Namespace) -> int:
    return trim_named(args) if args.pid else _listed(args)


def _listed(args: Namespace) -> int:
    host = open_host()
    from vram.reclaim.actions.trim import trimmable
    from vram.report import trimming

    told = trimming.trimmable_report(trimmable(host, wanted_via(args), args.deadline or DEADLINE_S))
    if args.json:
        from vram.report.json import encode

        emit(encode(told))
    else:
        look = render_options(args)
        show(trimming.trimmable(told, look), args, look)
    return ExitCode.NOTHING_FOUND if told.refused and not told.trimmable else ExitCode.OK
