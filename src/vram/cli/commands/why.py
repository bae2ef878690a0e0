"""``vram why``, and bare ``vram``: who holds GPU memory, what is wrong, and the command that mends it."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, emit, lines, show
from vram.errors import NoSuchProcess, NotOnGpu, TargetDied, UsageError, VramError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vram.host.local import LocalHost
    from vram.model.finding import Finding
    from vram.model.ledger import Ledger
    from vram.report.layout import RenderOptions

HELP = "who holds GPU memory, what is wrong, and the command that mends it (the default command)"


def add_arguments(parser: Parser) -> None:
    parser.add_pid(
        "pid",
        nargs="?",
        help="this process, dead or alive, on one screen, with what it reports of itself; -v: everything",
    )
    add_source_arguments(parser)
    parser.add_flag(
        "-v",
        "--verbose",
        help="every byte of every GPU, or all about PID, with the evidence and all remedies",
    )
    parser.add_flag("--json", help="one JSON object instead of text")
    parser.add_argument("--svg", metavar="FILE", help="draw the text into an SVG picture instead")
    parser.add_flag("--deep", help="ask every process that can be reached what is live, cached or fragmented")
    parser.add_argument("--watch", nargs="?", const="", help=SUPPRESS)
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    if args.watch is not None:
        raise UsageError(
            "--watch is a command of its own now",
            hint="`vram watch` prints changes, `vram top` is a live view",
        )
    if args.deep and args.snapshot:
        raise UsageError("--deep asks living processes", hint="leave out --from")
    if args.json and args.svg:
        raise UsageError("--svg draws the text, --json writes none", hint="leave out one of them")
    host = open_host(args)
    from vram.diagnosis.engine import diagnose
    from vram.report import json

    ledger = take_ledger(args, host)
    if host is not None:
        ledger = _with_history(ledger)
    findings = diagnose(ledger)
    if args.pid is not None:
        return _one_process(args, host, ledger, findings)
    died: tuple[int, ...] = ()
    if args.deep:
        from vram.ledger.deepen import deepen
        from vram.reclaim.inside import charged_pids, measure_all, noted

        assert host is not None
        measured = measure_all(host, charged_pids(ledger), args.deadline)
        ledger, died = deepen(noted(ledger, measured), measured.answers), measured.died
    if args.json:
        # Scripts get their object even where there is no driver: its probes say why.
        emit(json.why(ledger, findings))
        require_driver(ledger)
    else:
        require_driver(ledger)
        _show(ledger, findings, args)
    if died:
        from vram.reach import target_process

        raise target_process.died(*died)
    return completeness(ledger)


def _with_history(ledger: Ledger) -> Ledger:
    """*ledger* with what only the past tells, where the service keeps a history that we may read."""
    import os

    from vram.history import default_path

    if not os.path.exists(path := default_path()):
        return ledger
    from vram.history.taken_over import with_taken_over

    return with_taken_over(ledger, path)


def _one_process(
    args: Namespace, host: LocalHost | None, ledger: Ledger, findings: tuple[Finding, ...]
) -> int:
    from vram.ledger.deepen import deepen
    from vram.ledger.processes import concerning, findings_about

    if args.svg:
        raise UsageError("--svg draws all processes", hint="leave out the pid, or --svg")
    require_driver(ledger)
    notes: tuple[str, ...] = ()
    answered = False
    theirs = concerning(ledger, args.pid)
    if not theirs.gpus:
        hint = "`vram ps` lists those that hold GPU memory"
        if host is not None and host.proc.facts(args.pid) is None:
            raise NoSuchProcess(f"there is no process {args.pid}, and no driver lists one", hint=hint)
        raise NotOnGpu(f"pid {args.pid} holds no GPU memory and has no GPU open", hint=hint)
    if host is not None:
        from vram.diagnosis.remedies import without_trim
        from vram.ledger.deepen import caches_nothing
        from vram.reclaim.inside import charged_pids, measure_one

        answers, notes = measure_one(host, args.pid, args.deadline) if charged_pids(theirs) else ({}, ())
        theirs = concerning(deepen(ledger, answers), args.pid)
        answered = bool(answers)
        if answered and caches_nothing(answers[args.pid]):
            findings = without_trim(findings, args.pid)
    about = findings_about(findings, args.pid)
    if args.json:
        from vram.report import json

        emit(json.process(theirs, args.pid, about, notes))
    else:
        from vram.report import phrases, process_page, text, tree
        from vram.report.process_tree import who

        def draw(options: RenderOptions) -> RenderableType:
            job = phrases.membership(ledger, args.pid)
            family = tree.family(who(ledger), args.pid, options, brief=not args.verbose)
            if not args.verbose:
                return process_page.process_page(theirs, args.pid, about, notes, family, options, job)
            inside = _arrays(args, host, ledger, options) if answered else []
            return text.process(theirs, about, notes, family, inside, options)

        show(args, draw)
    return completeness(ledger)


def _arrays(
    args: Namespace, host: LocalHost | None, ledger: Ledger, options: RenderOptions
) -> list[RenderableType]:
    """Its largest arrays, where it answers; that it had answered before does not mean that it still does."""
    from vram.reclaim.inside import look_inside
    from vram.report.inside import largest_arrays
    from vram.units import MIB

    assert host is not None
    try:
        receipt = look_inside(host, ledger, args.pid, None, args.deadline, MIB)
    except TargetDied:
        raise
    except VramError:
        return []
    return largest_arrays(receipt, options)


def _show(ledger: Ledger, findings: tuple[Finding, ...], args: Namespace) -> None:
    if args.svg:
        from vram.files import write_file
        from vram.report.svg import draw

        prompt = "vram why" + (" -v" if args.verbose else "")
        picture = draw(lambda options: _answer(ledger, findings, args, options), prompt=prompt)
        write_file(args.svg, picture.encode())
        return
    show(args, lambda options: _answer(ledger, findings, args, options))


def _answer(
    ledger: Ledger, findings: tuple[Finding, ...], args: Namespace, options: RenderOptions
) -> RenderableType:
    if args.verbose or args.gpu:
        from vram.report import text

        whole = text.why(ledger, findings, options)
        return _with_families(whole, ledger, args, options) if args.gpu else whole
    from vram.report.screen import screen

    height = None if args.svg else lines()
    return screen(ledger, findings, options, height=height, source=_source(args))


def _with_families(
    whole: RenderableType, ledger: Ledger, args: Namespace, options: RenderOptions
) -> RenderableType:
    """The account of some GPUs, then who belongs to whom, and how to learn what is inside."""
    from rich.console import Group
    from rich.text import Text

    from vram.report import tree
    from vram.report.process_tree import who

    blocks = [whole, Text(), Text("Families", style="bold"), tree.who(who(ledger), options)]
    if not (args.deep or args.snapshot):
        words = f"vram why --gpu {','.join(args.gpu)} --deep"
        blocks += [Text(), Text(f"What is live and what is cached: {options.clean(words)}", style="dim")]
    return Group(*blocks)


def _source(args: Namespace) -> str:
    """The words that make another `vram why` read the same snapshot."""
    if not args.snapshot:
        return ""
    from shlex import quote

    return f" --from {quote('FILE' if args.snapshot == '-' else args.snapshot)}"
