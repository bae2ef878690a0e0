"""``vram why``, and bare ``vram``: who holds GPU memory, what is wrong, and the command that mends it."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import pid_number
from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, emit, is_fitted, lines, render_options, show
from vram.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vram.host.local import LocalHost
    from vram.model.finding import Finding
    from vram.model.ledger import Ledger
    from vram.report.layout import RenderOptions

NAME = "why"
HELP = "who holds GPU memory, what is wrong, and the command that mends it (the default command)"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pid",
        nargs="?",
        type=pid_number,
        metavar="PID",
        help="everything about this process, dead or alive, with what it reports of itself",
    )
    add_source_arguments(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="every byte of every GPU, with the evidence and all remedies; --gpu and PID do this too",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--svg", metavar="FILE", help="draw the text into an SVG picture instead")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="ask every Python process that can be reached what is live, cached or fragmented",
    )
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
    findings = diagnose(ledger)
    if args.pid is not None:
        return _one_process(args, host, ledger, findings)
    died: tuple[int, ...] = ()
    if args.deep:
        ledger, died = _deepened(ledger, host, args)
    if args.json:
        # Scripts get their object even where there is no driver: its probes say why.
        emit(json.why(ledger, findings))
        require_driver(ledger)
    else:
        require_driver(ledger)
        _show(ledger, findings, args)
    if died:
        from vram.reach import python_process

        raise python_process.died(*died)
    return completeness(ledger)


def _deepened(ledger: Ledger, host: LocalHost | None, args: Namespace) -> tuple[Ledger, tuple[int, ...]]:
    """The ledger with what each process answered, and the pids of those that ended meanwhile."""
    from vram.ledger.deepen import deepen
    from vram.reclaim.inside import charged_pids, measure_all, noted

    assert host is not None
    measured = measure_all(host, charged_pids(ledger), args.deadline)
    return deepen(noted(ledger, measured), measured.answers), measured.died


def _one_process(
    args: Namespace, host: LocalHost | None, ledger: Ledger, findings: tuple[Finding, ...]
) -> int:
    from vram.ledger.deepen import deepen
    from vram.ledger.holders import concerning, findings_about

    if args.svg:
        raise UsageError("--svg draws all processes", hint="leave out the pid, or --svg")
    require_driver(ledger)
    notes: tuple[str, ...] = ()
    answered = False
    theirs = concerning(ledger, args.pid)
    if not theirs.gpus:
        raise _not_there(args, host)
    if host is not None:
        from vram.reclaim.inside import charged_pids, measure_one

        answers, notes = measure_one(host, args.pid, args.deadline) if charged_pids(theirs) else ({}, ())
        theirs = concerning(deepen(ledger, answers), args.pid)
        answered = bool(answers)
    about = findings_about(findings, ledger, args.pid)
    if args.json:
        from vram.report import json

        emit(json.process(theirs, args.pid, about, notes))
    else:
        from vram.report import text, tree
        from vram.report.process_tree import who

        options = render_options(args)
        family = tree.family(who(ledger), args.pid, options)
        inside = _arrays(args, host, ledger, options) if answered else []
        show(text.process(theirs, about, notes, family, inside, options), args, options)
    return completeness(ledger)


def _arrays(
    args: Namespace, host: LocalHost | None, ledger: Ledger, options: RenderOptions
) -> list[RenderableType]:
    """Its largest arrays, where it answers; that it had answered before does not mean that it still does."""
    from vram.errors import TargetDied, VramError
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


def _not_there(args: Namespace, host: LocalHost | None) -> Exception:
    from vram.errors import NoSuchProcess, NotOnGpu

    hint = "`vram ps` lists those that hold GPU memory"
    if host is not None and host.proc.facts(args.pid) is None:
        return NoSuchProcess(f"there is no process {args.pid}, and no driver lists one", hint=hint)
    return NotOnGpu(f"pid {args.pid} holds no GPU memory and has no GPU open", hint=hint)


def _show(ledger: Ledger, findings: tuple[Finding, ...], args: Namespace) -> None:
    if args.svg:
        from vram.files import write_file
        from vram.report.svg import draw

        prompt = "vram why" + (" -v" if args.verbose else "")
        picture = draw(lambda options: _answer(ledger, findings, args, options), prompt=prompt)
        write_file(args.svg, picture.encode())
        return
    options = render_options(args)
    show(_answer(ledger, findings, args, options), args, options)


def _answer(
    ledger: Ledger, findings: tuple[Finding, ...], args: Namespace, options: RenderOptions
) -> RenderableType:
    if args.verbose or args.gpu:
        from vram.report import text

        whole = text.why(ledger, findings, options)
        return _with_families(whole, ledger, args, options) if args.gpu else whole
    from vram.report.screen import screen

    fitted = bool(args.svg) or is_fitted()
    height = None if args.svg else lines()
    return screen(ledger, findings, options, height=height, cut=fitted, source=_source(args))


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
