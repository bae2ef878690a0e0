"""``vram why``: where each byte is, who holds it, how we know, and what to do."""

from __future__ import annotations

import gc
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, NoReturn

from vram.cli.arguments import pid_number, seconds
from vram.cli.source import add_source_arguments, completeness, open_host, require_driver, take_ledger
from vram.cli.terminal import add_terminal_arguments, console_for, emit, is_terminal, render_options, show
from vram.errors import UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.finding import Finding
    from vram.model.ledger import Ledger

NAME = "why"
HELP = "where each byte of GPU memory is, who holds it, how we know, and what to do"

WINDOWS_EVERY_S = 15.0  # each question starts a PowerShell


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "pid",
        nargs="?",
        type=pid_number,
        metavar="PID",
        help="only what concerns this process, dead or alive, with what it reports of itself",
    )
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--svg", metavar="FILE", help="draw the text into an SVG picture instead")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=2.0,
        metavar="SECONDS",
        help="repeat until Ctrl-C (default: every 2 seconds); with --json, a line each time",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="ask every Python process that can be reached what is live, cached or fragmented",
    )
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    if args.deep and (args.snapshot or args.watch is not None):
        raise UsageError("--deep asks living processes, once", hint="leave out --from and --watch")
    if args.pid is not None and args.watch is not None:
        raise UsageError("--watch shows all processes", hint="leave out the pid, or --watch")
    if args.watch is not None:
        return _watch(args)
    if args.json and args.svg:
        raise UsageError("--svg draws the text, --json writes none", hint="leave out one of them")
    host = open_host(args)
    from vram.diagnosis.engine import diagnose
    from vram.report import json

    ledger = take_ledger(args, host)
    findings = diagnose(ledger)
    if args.pid is not None:
        return _one_process(args, host, ledger, findings)
    if args.deep:
        ledger = _deepened(ledger, host, args)
    if args.json:
        # Scripts get their object even where there is no driver: its probes say why.
        emit(json.why(ledger, findings))
        require_driver(ledger)
    else:
        require_driver(ledger)
        _show(ledger, findings, args)
    return completeness(ledger)


def _deepened(ledger: Ledger, host: LocalHost | None, args: Namespace) -> Ledger:
    from vram.ledger.deepen import deepen
    from vram.reclaim.inside import charged_pids, measure_all, noted

    assert host is not None
    measured = measure_all(host, charged_pids(ledger), args.deadline)
    return deepen(noted(ledger, measured), measured.answers)


def _one_process(
    args: Namespace, host: LocalHost | None, ledger: Ledger, findings: tuple[Finding, ...]
) -> int:
    from vram.ledger.deepen import deepen
    from vram.ledger.holders import concerning, findings_about

    if args.svg:
        raise UsageError("--svg draws all processes", hint="leave out the pid, or --svg")
    require_driver(ledger)
    notes: tuple[str, ...] = ()
    theirs = concerning(ledger, args.pid)
    if not theirs.gpus:
        raise _not_there(args, host)
    if host is not None:
        from vram.reclaim.inside import charged_pids, measure_one

        answers, notes = measure_one(host, args.pid, args.deadline) if charged_pids(theirs) else ({}, ())
        theirs = concerning(deepen(ledger, answers), args.pid)
    about = findings_about(findings, ledger, args.pid)
    if args.json:
        from vram.report import json

        emit(json.process(theirs, args.pid, about, notes))
    else:
        from vram.report import text

        options = render_options(args)
        show(text.process(theirs, about, notes, options), args, options)
    return completeness(ledger)


def _not_there(args: Namespace, host: LocalHost | None) -> Exception:
    from vram.errors import NoSuchProcess, NotOnGpu

    hint = "`vram who` lists those that hold GPU memory"
    if host is not None and host.proc.facts(args.pid) is None:
        return NoSuchProcess(f"there is no process {args.pid}, and no driver lists one", hint=hint)
    return NotOnGpu(f"pid {args.pid} holds no GPU memory and has no GPU open", hint=hint)


def _show(ledger: Ledger, findings: tuple[Finding, ...], args: Namespace) -> None:
    from vram.report import text

    if args.svg:
        from vram.files import write_file
        from vram.report.svg import draw

        picture = draw(lambda options: text.why(ledger, findings, options), prompt="vram why")
        write_file(args.svg, picture.encode())
        return
    options = render_options(args)
    show(text.why(ledger, findings, options), args, options)


# ---- again and again: in place on a terminal, in lines elsewhere ----


def _watch(args: Namespace) -> NoReturn:
    """Read and show every ``args.watch`` seconds until interrupted."""
    if args.snapshot:
        raise UsageError("a snapshot does not change: --watch needs a live host", hint="leave out --from")
    if args.svg:
        raise UsageError("--svg draws one picture, --watch never ends", hint="leave out one of them")
    if args.watch < 0.1:
        raise UsageError("--watch needs at least 0.1 seconds", hint="write it like --watch 2")
    # The program starts with the collector off, which suits a single answer only.
    gc.enable()
    # One host throughout: it remembers which GPU hung, so that hung readers do not pile up.
    host = open_host(args, windows_every_s=WINDOWS_EVERY_S)
    assert host is not None
    if args.json:
        _as_json(args, host)
    if is_terminal():
        _on_a_screen(args, host)
    _as_pages(args, host)


def _as_json(args: Namespace, host: LocalHost) -> NoReturn:
    from vram.diagnosis.engine import diagnose
    from vram.report import json

    while True:
        ledger = take_ledger(args, host)
        emit(json.why(ledger, diagnose(ledger), compact=True))
        require_driver(ledger)
        time.sleep(args.watch)


def _as_pages(args: Namespace, host: LocalHost) -> NoReturn:
    from vram.diagnosis.engine import diagnose
    from vram.report import text

    while True:
        options = render_options(args)
        ledger = take_ledger(args, host)
        require_driver(ledger)
        show(text.why(ledger, diagnose(ledger), options), args, options)
        emit("\n")
        time.sleep(args.watch)


def _on_a_screen(args: Namespace, host: LocalHost) -> NoReturn:
    from rich.live import Live

    from vram.diagnosis.engine import diagnose
    from vram.report import text

    ledger = take_ledger(args, host)
    require_driver(ledger)
    console = console_for(args, render_options(args))
    # The alternate screen: what was on the terminal before is there again afterwards.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            options = render_options(args)._replace(brief=True)
            console.width = options.width
            live.update(text.why(ledger, diagnose(ledger), options), refresh=True)
            time.sleep(args.watch)
            ledger = take_ledger(args, host)
