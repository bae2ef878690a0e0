"""``vram top``: the processes that hold GPU memory, live, with actions on each."""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser, add_gpus_argument, add_reading_arguments, narrowed, read_duration
from vram.cli.source import reader_options
from vram.cli.terminal import carries_unicode, require_view
from vram.errors import ExitCode, UsageError
from vram.units import spell_duration

HELP = "live view of who holds GPU memory; release, trim, park, free or kill from it"

MIN_S = 0.1

_EPILOG = """\
keys: ? help, q quit, / search, t tree by container, job and family, d details,
< > sort, U G S only this user, GPU or state, a memory by line of a process that
`vram run` or `vram attach` records. On the selected line: f free, R release (a
server), m trim, p park, u undo a park or release, k kill; each shows its plan
and asks first. The mouse works, too.

Needs Textual (the extra `top`). `vram watch` needs no screen."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "--every", type=_interval, default=2.0, metavar="DURATION", help="read this often (default: 2s)"
    )
    add_gpus_argument(parser)
    add_reading_arguments(parser)
    parser.add_flag("--ascii", help="bars and lines without Unicode")


def _interval(text: str) -> float:
    seconds = read_duration(text)
    if seconds < MIN_S:
        raise UsageError(f"{text!r} is too short", hint=f"at least {spell_duration(MIN_S)} are needed")
    return seconds


def run(args: Namespace) -> int:
    require_view("vram top", "`vram ps` prints the table once, `vram watch` prints changes")
    from vram.live_reader import ReaderClient

    reader = reader_options(args, measure_cpu=True)
    source = ReaderClient(reader)
    # Read while Textual is imported, which takes longer than a reading.
    source.launch()
    try:
        from vram.host.local import LocalHost
        from vram.top.app import TopApp

        elsewhere = f"processes of {reader.proc_root} can only be looked at from here"
        app = TopApp(
            source,
            LocalHost,
            every_s=args.every,
            deadline_s=args.deadline,
            ascii_only=args.ascii or not carries_unicode(),
            narrow=(lambda ledger: narrowed(ledger, args.gpu)) if args.gpu else None,
            read_only="" if reader.proc_root == "/proc" else elsewhere,
        )
        app.run()
    finally:
        source.close()
    if app.failure is not None:
        raise app.failure
    # Textual exits 1 after a bug, which `vram check` uses to say that a GPU is held.
    return ExitCode.INTERNAL if app.return_code else ExitCode.OK
