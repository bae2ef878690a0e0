"""``vram watch``: changes of GPU memory as they happen, a line each, for logs and hooks.

    vram watch
    vram watch --json >> /var/log/vram.jsonl
    vram watch --events ghost --exec '/usr/local/bin/tell-admins'
    vram watch --events freed --count 1 && ./next-job

First comes the state of now, then only what changes, until Ctrl-C.
"""

from __future__ import annotations

import gc
import select
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from vram.cli.arguments import (
    Parser,
    add_gpus_argument,
    add_reading_arguments,
    narrowed,
    select_gpus,
    whole_number,
)
from vram.cli.prestart import import_for_readers
from vram.cli.source import WINDOWS_EVERY_S, open_host, take_whole_ledger
from vram.cli.terminal import add_terminal_arguments, colored, emit, is_terminal, render_options
from vram.errors import ExitCode, UsageError
from vram.units import spell_duration

if TYPE_CHECKING:
    from vram.cli.hooks import Hooks
    from vram.diagnosis.changes import Comparison
    from vram.host.local import LocalHost
    from vram.model.change import Change, WatchState
    from vram.model.finding import Finding
    from vram.model.ledger import GpuLedger, Ledger

HELP = "changes only, a line each: ghosts, growth, memory that came back; for logs and hooks"

EVERY_S = 2.0
MIN_S = 0.1
# What was there in one reading is confirmed by another one, this much later at most.
CONFIRM_S = 0.5
HOOK_S = 30.0
MIN_CHANGE = "64MiB"
# Readings between two full collections. Python's own come too seldom for a process that runs for weeks: its
# free lists alone grow by a megabyte until then.
COLLECT_AFTER = 100

EPILOG = """\
--exec runs COMMAND for each change, one at a time, without a shell: the change is
a line of JSON on its standard input, and VRAM_EVENT, VRAM_GPU, VRAM_PID, VRAM_NBYTES
and others are in its environment. What it prints goes to standard error. It runs as
the user who watches: as root, if that is root.

exit codes: 0 after --count changes or after the time of --for, 21 when that time passed
without --count changes, 130 after Ctrl-C."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_duration("--every", default=EVERY_S, help="read this often")
    add_gpus_argument(parser)
    parser.add_size(
        "--min",
        default=MIN_CHANGE,
        help="report growth and shrinking once they add up to this (default: %(default)s)",
    )
    parser.add_argument(
        "--events",
        type=event_names,
        metavar="EVENT[,EVENT...]",
        help="only these events, or groups of them: processes, ghosts, memory, gpus, driver, probes,"
        " findings",
    )
    parser.add_flag("--json", help="a JSON object for each line instead of text")
    parser.add_argument("--exec", dest="hook", metavar="COMMAND", help="run this for each change")
    parser.add_duration(
        "--exec-timeout", default=HOOK_S, help="end the command of --exec when it takes longer"
    )
    parser.add_duration("--for", dest="duration", help="end after this time, e.g. 10min")
    parser.add_argument(
        "--count",
        type=whole_number((1 << 31) - 1, "a number of changes"),
        metavar="N",
        help="end after N changes",
    )
    add_reading_arguments(parser)
    add_terminal_arguments(parser)


def event_names(text: str) -> frozenset[str]:
    """Read the words of ``--events``."""
    from typing import get_args

    from vram.model.change import GROUPS, Event

    chosen: set[str] = set()
    for word in text.split(","):
        name = word.strip()
        if name in GROUPS:
            chosen.update(GROUPS[name])
        elif name in get_args(Event):
            chosen.add(name)
        else:
            known = ", ".join((*GROUPS, *sorted(get_args(Event))))
            raise ArgumentTypeError(f"there is no event {name!r}; these exist: {known}")
    return frozenset(chosen)


def run(args: Namespace) -> int:
    if args.every < MIN_S:
        raise UsageError(f"--every needs at least {spell_duration(MIN_S)}", hint="write it like --every 2s")
    from vram.cli.hooks import Hooks, read_command

    hooks = Hooks([] if args.hook is None else read_command(args.hook), args.exec_timeout)
    # The program starts with the collector set for a single answer.
    gc.enable()
    from vram.cli.app import exit_on_signals

    with exit_on_signals():
        # One host throughout: it remembers which GPU hung, so that hung readers do not pile up.
        host = open_host(args, windows_every_s=WINDOWS_EVERY_S)
        assert host is not None
        import_for_readers()
        from vram.diagnosis.changes import Comparison

        watch = _Watch(args, host, Comparison(args.min), hooks)
        try:
            return watch.run()
        finally:
            hooks.close()


class _Watch:
    """Reads, compares and reports until the time or the number of changes is reached."""

    def __init__(self, args: Namespace, host: LocalHost, comparison: Comparison, hooks: Hooks) -> None:
        from vram.diagnosis.busy import BusyTime
        from vram.model.change import GROUPS

        self._args = args
        self._host = host
        self._comparison = comparison
        self._hooks = hooks
        self._busy = BusyTime()
        self._readings = self._reported = 0
        # The whole ledger is read, and narrowed here: a GPU that is gone is a change and no wrong word.
        self._gpus = args.gpu
        self._are_gpus_checked = False
        self._wants_findings = args.events is None or not args.events.isdisjoint(GROUPS["findings"])

    def run(self) -> int:
        from vram.report import changes

        began = time.monotonic()
        until = None if self._args.duration is None else began + self._args.duration
        state = self._comparison.begin(*self._read())
        self._print(state, changes.state_text)
        # All that is imported stays: it need not be looked at again, nor copied for each reader.
        gc.freeze()
        while True:
            next_at = self._next_reading(began)
            self._wait(next_at if until is None else min(next_at, until))
            began = time.monotonic()
            if until is not None and began >= until:
                self._finish_hooks()
                return ExitCode.OK if self._args.count is None else ExitCode.TIMED_OUT
            for change in self._comparison.compare(*self._read()):
                self._report(change)
                if self._reported == self._args.count:
                    self._finish_hooks()
                    return ExitCode.OK

    def _next_reading(self, began: float) -> float:
        """When to read again, where the last reading began at *began*; never without a pause."""
        pause_s: float = self._args.every
        if self._comparison.needs_confirmation:
            pause_s = min(pause_s, CONFIRM_S)
        return max(began + pause_s, time.monotonic() + MIN_S)

    def _read(self) -> tuple[Ledger, tuple[Finding, ...]]:
        from vram.diagnosis.engine import diagnose

        self._readings += 1
        if self._readings % COLLECT_AFTER == 0:
            gc.collect()
        ledger = self._narrow(take_whole_ledger(self._args, self._host))
        if not self._wants_findings:
            return ledger, ()
        return ledger, self._busy.judge(ledger, diagnose(ledger), self._host.clock.monotonic())

    def _narrow(self, ledger: Ledger) -> Ledger:
        """Only the chosen GPUs, as far as they are there."""
        if not self._gpus or not ledger.gpus:
            return ledger
        if not self._are_gpus_checked:
            narrowed(ledger, self._gpus)
            self._are_gpus_checked = True
        from contextlib import suppress

        from msgspec.structs import replace

        found: dict[tuple[int, str], GpuLedger] = {}
        for word in [part.strip() for words in self._gpus for part in words.split(",")]:
            with suppress(UsageError):  # it is gone now
                found |= {(gpu.index, gpu.mig or ""): gpu for gpu in select_gpus(ledger, [word]).gpus}
        return replace(ledger, gpus=tuple(found[place] for place in sorted(found)))

    # ---- what comes out ----

    def _report(self, change: Change) -> None:
        from vram.report import changes

        if self._args.events is not None and change.event not in self._args.events:
            return
        self._reported += 1
        # Before it is shown: a user who ends the watch then is told that its hook was not run.
        self._hooks.add(change)
        self._print(change, changes.change_text)
        self._hooks.step()

    def _print(self, what: Change | WatchState, text: Callable[..., str]) -> None:
        """As wide as the terminal; in a log, lines are as long as they are."""
        from vram.report import changes

        if self._args.json:
            emit(changes.json_line(what))
        else:
            options = render_options(self._args)
            options = options if is_terminal() else options._replace(width=0)
            emit(text(what, options, color=colored(self._args)))

    # ---- the time between two readings ----

    def _wait(self, until: float) -> None:
        """Wait, and look after hooks meanwhile. Raises BrokenPipeError where the reader has gone."""
        while (left_s := until - time.monotonic()) > 0:
            if self._hooks.wakes_at is not None:
                left_s = min(left_s, max(0.0, self._hooks.wakes_at - time.monotonic()))
            self._poll(left_s)
            self._hooks.step()

    def _poll(self, timeout_s: float) -> None:
        poll = select.poll()
        if self._hooks.pidfd is not None:
            poll.register(self._hooks.pidfd, select.POLLIN)
        output = sys.stdout.fileno() if sys.stdout is not None else -1
        if output >= 0:
            poll.register(output, 0)
        for number, event in poll.poll(max(1, timeout_s * 1000)):
            # A pipe whose reader has gone says so at once; without this it shows with the next change.
            if number == output and event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                raise BrokenPipeError

    def _finish_hooks(self) -> None:
        """Let the hooks of everything that was reported run."""
        while not self._hooks.is_idle:
            self._wait(time.monotonic() + 1.0)
