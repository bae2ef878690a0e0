"""``vram top``: the processes that hold GPU memory, live, with actions on each."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import add_deadline_argument, add_windows_argument, narrowed, read_duration
from vram.cli.source import roots
from vram.cli.terminal import carries_unicode, require_view
from vram.errors import ExitCode, UsageError
from vram.units import spell_duration

if TYPE_CHECKING:
    from vram.live_reader import ReaderClient

NAME = "top"
HELP = "live view of who holds GPU memory; trim, park, free or kill from it"

MIN_S = 0.1

_EPILOG = """\
keys: ? help, q quit, / search, t tree by container, job and family, d details,
< > sort, U G S only this user, GPU or state, a memory by line of a process that
`vram run` or `vram attach` records. On the selected line: f free,
m trim, p park, u unpark, k kill; each shows its plan and asks first. The mouse
works, too.

Needs Textual: pip install 'vram[top]'. `vram watch` needs no screen."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "--every",
        type=_interval,
        default=2.0,
        metavar="DURATION",
        help="read this often (default: 2s)",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU[,GPU...]",
        help="only these GPUs, by number, UUID or PCI address; 0:1 is MIG device 1 of GPU 0 (repeatable)",
    )
    add_deadline_argument(parser)
    add_windows_argument(parser)
    parser.add_argument("--ascii", action="store_true", help="bars and lines without Unicode")


def _interval(text: str) -> float:
    seconds = read_duration(text)
    if seconds < MIN_S:
        raise UsageError(f"{text!r} is too short", hint=f"at least {spell_duration(MIN_S)} are needed")
    return seconds


def run(args: Namespace) -> int:
    require_view("vram top", "`vram ps` prints the table once, `vram watch` prints changes")
    proc_root, sys_root = roots()
    from vram.live_reader import ReaderClient, ReaderOptions

    source = ReaderClient(
        ReaderOptions(
            proc_root=proc_root,
            sys_root=sys_root,
            ask_windows=not args.no_windows,
            deadline_s=args.deadline,
        )
    )
    # Read while Textual is imported, which takes longer than a reading.
    source.launch()
    try:
        return _view(args, source, proc_root)
    finally:
        source.close()


def _view(args: Namespace, source: ReaderClient, proc_root: str) -> int:
    from vram.host.local import LocalHost
    from vram.top.app import TopApp

    app = TopApp(
        source,
        LocalHost,
        every_s=args.every,
        deadline_s=args.deadline,
        ascii_only=args.ascii or not carries_unicode(),
        narrow=(lambda ledger: narrowed(ledger, args.gpu)) if args.gpu else None,
        read_only="" if proc_root == "/proc" else f"processes of {proc_root} can only be looked at from here",
    )
    app.run()
    if app.failure is not None:
        raise app.failure
    # Textual exits 1 after a bug, which `vram check` uses to say that a GPU is held.
    return ExitCode.INTERNAL if app.return_code else ExitCode.OK
