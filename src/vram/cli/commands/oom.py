"""``vram oom``: an out-of-memory message, or a whole log: which kind it is, and what to do."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.source import (
    add_deadline_argument,
    add_windows_argument,
    narrowed,
    open_host,
    require_driver,
    take_survey,
)
from vram.cli.terminal import add_terminal_arguments, emit, look_for, show
from vram.errors import ExitCode, NothingFound, UsageError

if TYPE_CHECKING:
    from vram.model.ledger import Ledger
    from vram.model.oom import Case

NAME = "oom"
HELP = "which kind of out-of-memory a message or a log shows, by its own arithmetic, and what to do"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="a log, gzip too; - or nothing: standard input"
    )
    parser.add_argument(
        "--live", action="store_true", help="join it with this machine's ledger: who holds that memory now"
    )
    parser.add_argument(
        "--from", dest="snapshot", metavar="FILE", help="join it with a snapshot of its machine instead"
    )
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help="which GPU the message means: its number, UUID or PCI address, or 0:1 for MIG device 1 of GPU 0;"
        " with --live or --from",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--kinds", action="store_true", help="list the kinds; `vram explain KIND` tells more")
    add_deadline_argument(parser)
    add_windows_argument(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    if args.kinds and args.json:
        raise UsageError("--kinds is a list for people", hint="leave out --json")
    if args.kinds:
        return _kinds()
    joins = args.live or args.snapshot
    if args.gpu is not None and not joins:
        raise UsageError("--gpu chooses a GPU to join with", hint="add --live, or --from FILE")
    from vram.cli.logs import open_log
    from vram.oom.cases import cases
    from vram.oom.reader import find_messages

    with open_log(args.file) as log:
        found, unkept = cases(find_messages(log))
        nbytes = log.nbytes
    ledger = _ledger(args) if joins and found else None
    if ledger is not None:
        found = _joined(found, ledger, chosen=args.gpu is not None)
    _tell(_to_paste(found, args.file), unkept, nbytes, args)
    if ledger is not None:
        require_driver(ledger)
    return ExitCode.PARTIAL if any(case.judgement.kind == "unknown" for case in found) else ExitCode.OK


def _kinds() -> int:
    from vram.oom import judge

    width = max(map(len, judge.ids()))
    emit("".join(f"{kind:<{width}}  {judge.summary(kind)}\n" for kind in judge.ids()))
    return ExitCode.OK


def _ledger(args: Namespace) -> Ledger:
    host = open_host(args)
    from vram.ledger.build import build_ledger

    # A GPU that was named and is not there is a wrong call, as it is for `vram why`.
    return narrowed(build_ledger(take_survey(args, host)), None if args.gpu is None else [args.gpu])


def _joined(found: tuple[Case, ...], ledger: Ledger, *, chosen: bool) -> tuple[Case, ...]:
    from vram.diagnosis.engine import diagnose
    from vram.oom.live import join

    findings = diagnose(ledger)
    return tuple(join(case, ledger, findings, chosen=chosen) for case in found)


def _to_paste(found: tuple[Case, ...], file: str) -> tuple[Case, ...]:
    """Name the log in what is advised; what came through a pipe has no name."""
    from msgspec.structs import replace

    from vram.oom.remedies import naming

    if file == "-":
        return found
    return tuple(
        replace(case, judgement=replace(case.judgement, remedies=naming(file, case.judgement.remedies)))
        for case in found
    )


def _tell(found: tuple[Case, ...], unkept: int, nbytes: int, args: Namespace) -> None:
    if args.json:
        from vram.report.oom_json import report

        emit(report(found, unkept, nbytes))
    if not found:
        raise NothingFound(
            "there is no out-of-memory message in it" if nbytes else "there is nothing in it",
            hint="paste the lines from the first error to the end, figures and all",
        )
    if not args.json:
        from vram.report import oom

        look = look_for(args)
        show(oom.text(found, unkept, nbytes, look), args, look)
