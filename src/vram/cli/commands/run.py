"""``vram run``: record every allocation of a command and its children.

    vram run -- python train.py
    vram run -o train.vram --framework torch -- torchrun --nproc-per-node 8 train.py
    vram run --check leaks=0 --check peak=8GiB -- pytest tests/
    vram run --pretend 24GiB -- python train.py

The command is not changed and not slowed down noticeably. It has the terminal and gets our signals; its
standard input, output and error are its own. vram ends as the command does: with its exit code, or by the
same signal; with 127 where it is not found and 126 where it cannot be run. Its own messages go to standard
error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.prestart import open_host
from vram.cli.terminal import carries_unicode, require_view, say
from vram.cli.tracing import (
    SUMMARISED_NBYTES,
    add_recording_arguments,
    not_recorded,
    read_view,
    sentences,
    shown_path,
    stacks,
    summary,
    violation_lines,
)
from vram.errors import ExitCode, UsageError, VramError
from vram.units import parse_size, size

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.trace import TraceView
    from vram.trace.checks import TraceCheck, Violation
    from vram.trace.launch import Launch, Launched

HELP = "record every GPU allocation of a command, with the line that made it"

USAGE = "vram run [options] -- COMMAND..."
EPILOG = """\
checks, evaluated when the command has ended (repeatable):
  leaks=N      at most N allocations that leaked, or that one place kept making and never freed; of a
               program without Python, that it had not freed when it ended
  unfreed=N    at most N allocations that were not freed, of any program, whatever the reason
  peak=SIZE    at most so much at once on each GPU
  failures=N   at most N allocations that failed
If one does not hold, or if there is nothing to judge it by, vram exits with 90 and prints
the places; if the command itself failed, its own exit code wins.

If vram is killed, the command goes on and each process's trace stays readable, as FILE.PID.part.
"""


def add_arguments(parser: Parser) -> None:
    parser.usage, parser.epilog = USAGE, EPILOG
    add_recording_arguments(parser)
    parser.add_flag("--force", help="replace FILE if it exists")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="NAME=MOST",
        help="exit with 90 unless this holds: leaks=N, unfreed=N, peak=SIZE or failures=N (repeatable)",
    )
    parser.add_size(
        "--pretend",
        help="hold the rest of every visible GPU, so that the command finds only this much free, e.g. 24GiB",
    )
    parser.add_argument(
        "--fail-at",
        metavar="N|SIZE",
        help="let the Nth allocation fail, or every one of at least this size, e.g. 3 or 512MiB",
    )
    parser.add_flag(
        "--live", help="show memory by place while it runs; the command's output goes to FILE.log"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from vram.trace import output
    from vram.trace.checks import parse_check
    from vram.trace.launch import Launch, RecordSettings

    if args.words:
        shown = " ".join([*args.words, *(["--", *args.command] if args.command else [])])
        raise UsageError("put -- before the command", hint=f"vram run -- {shown}")
    if not args.command:
        raise UsageError("no command given", hint="for example: vram run -- python train.py")
    checks = [parse_check(word) for word in args.check]
    fail_at = parse_fail_at(args.fail_at) if args.fail_at is not None else None
    name = args.output or output.default_name(args.command[0], os.getpid())
    settings = RecordSettings(
        output=output.require_writable(name, force=args.force),
        stacks=stacks(args),
        framework=args.framework,
        fail_at=fail_at,
    )
    if args.live:
        instead = "without --live it records the same: `vram report` shows it afterwards"
        require_view("vram run --live", instead)
        output.require_writable(f"{settings.output}.log", force=args.force)
    with ExitStack() as stack:
        host = open_host(reads_driver=args.pretend is not None)
        prepared = stack.enter_context(Launch(host, args.command, settings))
        if args.pretend is not None:
            _pretend(stack, host, args.pretend)
        launched = _launch_live(args, prepared) if args.live else _launch(args, prepared)
    return _report(launched, checks)


def parse_fail_at(text: str) -> str:
    """A number of an allocation, or a size with its unit."""
    if text.isascii() and text.isdecimal():
        if int(text) < 1:
            raise UsageError(
                "--fail-at counts allocations from 1", hint="write --fail-at 1 or --fail-at 512MiB"
            )
        return f"count={int(text)}"
    return f"size={parse_size(text)}"


def _pretend(stack: ExitStack, host: LocalHost, nbytes: int) -> None:
    from vram.trace.pretend import Ballast, require_empty

    require_empty(host, os.environ)
    ballast = stack.enter_context(Ballast(nbytes, os.environ))
    for each in ballast.devices:
        whole = size(each.total)
        say(f"GPU {each.device}: {size(each.free)} is free for the command; vram holds the rest of {whole}")


def _launch(args: argparse.Namespace, prepared: Launch) -> Launched:
    from vram.trace.launch import launch
    from vram.virtualgpu.launch import signals_held, wait_status

    # From here on signals are for the command; ours wait until its trace is complete.
    with signals_held() as mask:
        return launch(prepared, os.environ, partial(wait_status, mask=mask), force=args.force)


def _launch_live(args: argparse.Namespace, prepared: Launch) -> Launched:
    """The page has the terminal; the command is in a process group of its own, and writes to a file."""
    from vram.top.run_live import LiveRun, pass_on
    from vram.top.sites import FollowedTrace
    from vram.trace.launch import launch
    from vram.virtualgpu.launch import signals_held, start, wait_for

    log = f"{prepared.settings.output}.log"
    if args.force:
        _remove(log)
    new = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND | os.O_EXCL
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, new, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]

    def wait(argv: Sequence[str], environment: Mapping[str, str]) -> int:
        with signals_held() as mask:
            pid = start(argv, environment, mask, file_actions=files, setpgroup=0)
            try:
                source = FollowedTrace(prefix=prepared.settings.output, run=prepared.run)
                page = LiveRun(pid, source, " ".join(argv), log, ascii_only=not carries_unicode())
                status = page.run_page()
            except OSError as error:  # no descriptors, say: the command has been started, and is ours
                say(f"the page cannot be shown: {error.strerror or error}")
                status = None
            if status is not None:
                return status
            say("the command goes on; Ctrl-C interrupts it")
            return wait_for(pid, pass_on(pid))

    launched = launch(prepared, os.environ, wait, force=args.force)
    say(f"what the command printed is in {shown_path(log)}")
    return launched


def _remove(log: str) -> None:
    """Not emptied: who owns it, or has it open, would read what the command prints."""
    try:
        os.unlink(log)
    except FileNotFoundError:
        pass
    except OSError as error:  # another user's, in a folder like /tmp
        raise UsageError(
            f"cannot replace {log}: {error.strerror}", hint="choose another file with -o"
        ) from error


# ---- at the end ----


def _report(launched: Launched, checks: Sequence[TraceCheck]) -> int:
    """Say what was recorded; return the exit code, or end by the command's signal."""
    from vram.virtualgpu.launch import ENDED_BY_SIGNAL, end_by_signal

    for sentence in sentences(launched):
        say(sentence)
    view = None
    try:
        if launched.trace is not None:
            nbytes = os.path.getsize(launched.trace)
            if checks or nbytes <= SUMMARISED_NBYTES:
                view = read_view([launched.trace], names=bool(checks))  # for the places
            say(summary(launched.trace, view, nbytes))
    except (VramError, OSError, MemoryError) as error:  # the exit code is the command's all the same
        say(f"{launched.trace}: {error or 'there is not enough memory to read it'}")
    violations = _judge(launched, view, checks)
    for violation in violations:
        first, *places = violation_lines(violation)
        say(first, places)
    status = launched.status
    if os.WIFSIGNALED(status):
        end_by_signal(os.WTERMSIG(status))
        return ENDED_BY_SIGNAL + os.WTERMSIG(status)
    return os.WEXITSTATUS(status) or (ExitCode.CHECK_FAILED if violations else ExitCode.OK)


def _judge(launched: Launched, view: TraceView | None, checks: Sequence[TraceCheck]) -> tuple[Violation, ...]:
    from vram.trace.checks import judge, unjudged

    if not checks:
        return ()
    growing = f"pid {launched.growing[0].pid} of it still runs" if launched.growing else ""
    if view is None:
        there = "there is no trace" if launched.trace is None else "the trace cannot be read"
        return unjudged(checks, growing or there)
    missing = growing or not_recorded(launched.messages)
    return judge(view, checks, missing)
