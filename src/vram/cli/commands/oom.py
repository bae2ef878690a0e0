"""``vram oom``: an out-of-memory message, or a whole log: which kind it is, and what to do."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_reading_arguments, narrowed
from vram.cli.source import open_host, require_driver, take_whole_ledger
from vram.cli.terminal import add_terminal_arguments, emit, say, show
from vram.errors import ExitCode, NothingFound, UsageError
from vram.units import size

if TYPE_CHECKING:
    from vram.cli.logs import CountedLog
    from vram.model.ledger import Ledger
    from vram.model.oom import Case

HELP = "explain an out-of-memory error from a message or a log"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="log file, also gzip, xz or bzip2; - or nothing reads standard input",
    )
    parser.add_flag("--live", help="combine it with this machine's state: who holds that memory now")
    parser.add_argument(
        "--from", dest="snapshot", metavar="FILE", help="combine it with a snapshot of its machine instead"
    )
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help="with --live or --from: the GPU that the message means, by number, UUID or PCI address; 0:1"
        " is MIG device 1 of GPU 0",
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_flag("--kinds", help="list the kinds; `vram explain KIND` has more")
    add_reading_arguments(parser)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    if args.kinds and args.json:
        raise UsageError("--kinds has no JSON form", hint="leave out --json")
    if args.kinds:
        from vram.cli import manual

        kinds = manual.summaries(manual.kinds())
        width = max(len(kind) for kind, _ in kinds)
        emit("".join(f"{kind:<{width}}  {summary}\n" for kind, summary in kinds))
        return ExitCode.OK
    joins = args.live or args.snapshot
    if args.gpu is not None and not joins:
        raise UsageError("--gpu works only with --live or --from FILE", hint="add --live, or --from FILE")
    from vram.cli.logs import open_log
    from vram.oom.cases import cases
    from vram.oom.reader import find_messages

    with open_log(args.file) as log:
        found, unkept = cases(find_messages(log))
    ledger = None
    if joins and found:
        # A GPU that was named and is not there is a wrong call, as it is for `vram why`.
        named = None if args.gpu is None else [args.gpu]
        ledger = narrowed(take_whole_ledger(args, open_host(args)), named)
        found = _join(found, ledger, chosen=args.gpu is not None)
    _tell(_to_paste(found, args.file), unkept, log, args)
    if ledger is not None:
        require_driver(ledger)
    return ExitCode.PARTIAL if any(case.judgement.kind == "unknown" for case in found) else ExitCode.OK


def _join(found: tuple[Case, ...], ledger: Ledger, *, chosen: bool) -> tuple[Case, ...]:
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


def _tell(found: tuple[Case, ...], unkept: int, log: CountedLog, args: Namespace) -> None:
    if log.was_stopped and found:
        say(f"stopped before {log.name} ended: this was found in {size(log.nbytes)}")
    if args.json:
        from vram.report import json_reports

        emit(json_reports.oom(found, unkept, log.nbytes))
    if not found:
        raise _nothing_in(log)
    if not args.json:
        from vram.report import oom

        show(args, lambda options: oom.text(found, unkept, log.nbytes, options))


def _nothing_in(log: CountedLog) -> NothingFound:
    hint = "paste all lines from the first error to the end, with their figures"
    if not log.nbytes:
        return NothingFound("the input is empty", hint=hint)
    if log.was_stopped:
        return NothingFound(
            f"stopped before {log.name} ended: no out-of-memory message in its first {size(log.nbytes)}",
            hint=hint,
        )
    if log.has_nulls:
        return NothingFound(
            f"{log.name} is not text, and no out-of-memory message was found in it", hint="name a log"
        )
    return NothingFound("no out-of-memory message found", hint=hint)
