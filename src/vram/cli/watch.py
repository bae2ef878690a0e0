"""``vram why --watch``: the answer again and again, in place on a terminal, in lines elsewhere."""

from __future__ import annotations

import gc
import time
from argparse import Namespace
from typing import NoReturn

from vram.cli.source import require_driver, roots, take_ledger
from vram.cli.terminal import console_for, emit, is_terminal, look_for, show
from vram.diagnosis.engine import diagnose
from vram.errors import UsageError
from vram.host.local import LocalHost

WINDOWS_EVERY_S = 15.0  # each question starts a PowerShell


def watch(args: Namespace) -> NoReturn:
    """Look every ``args.watch`` seconds until interrupted."""
    if args.watch < 0.1:
        raise UsageError("--watch needs at least 0.1 seconds", hint="write it like --watch 2")
    # The program starts with the collector off, which suits a single answer only.
    gc.enable()
    # One host throughout: it remembers which GPU hung, so that hung readers do not pile up.
    proc, sys = roots()
    host = LocalHost(proc, sys_root=sys, ask_windows=not args.no_windows, windows_every_s=WINDOWS_EVERY_S)
    if args.json:
        _lines(args, host)
    if is_terminal():
        _in_place(args, host)
    _appended(args, host)


def _lines(args: Namespace, host: LocalHost) -> NoReturn:
    from vram.report import json

    while True:
        ledger = take_ledger(args, host)
        emit(json.why(ledger, diagnose(ledger), compact=True))
        require_driver(ledger)
        time.sleep(args.watch)


def _appended(args: Namespace, host: LocalHost) -> NoReturn:
    from vram.report import text

    while True:
        look = look_for(args)
        ledger = take_ledger(args, host)
        require_driver(ledger)
        show(text.why(ledger, diagnose(ledger), look), args, look)
        emit("\n")
        time.sleep(args.watch)


def _in_place(args: Namespace, host: LocalHost) -> NoReturn:
    from rich.live import Live

    from vram.report import text

    ledger = take_ledger(args, host)
    require_driver(ledger)
    console = console_for(args, look_for(args))
    # The alternate screen: what was on the terminal before is there again afterwards.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            look = look_for(args)._replace(brief=True)
            console.width = look.width
            live.update(text.why(ledger, diagnose(ledger), look), refresh=True)
            time.sleep(args.watch)
            ledger = take_ledger(args, host)
