"""What a command reads: this host or a snapshot of another, all its GPUs or some."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from vram.cli import prestart
from vram.cli.arguments import Parser, add_gpus_argument, add_reading_arguments, narrowed
from vram.errors import DriverMissing, ExitCode, UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.live_reader import ReaderOptions
    from vram.model.ledger import Ledger
    from vram.model.observation import Survey


WINDOWS_EVERY_S = 15.0
"""How often commands that read again and again ask Windows: each question starts a PowerShell."""


def add_source_arguments(parser: Parser) -> None:
    """Add the options that choose what is read."""
    add_gpus_argument(parser)
    parser.add_argument(
        "--from",
        dest="snapshot",
        metavar="FILE",
        help="read a snapshot instead of this host; - is standard input",
    )
    add_reading_arguments(parser)


def open_host(args: Namespace, *, windows_every_s: float = 0.0) -> LocalHost | None:
    """Return this host, being read from now on at the latest; None where a snapshot is judged.

    A command that opens it first and imports the rest after that saves the time of those imports.
    """
    if getattr(args, "snapshot", None):
        return None
    proc, sys = roots()
    return prestart.open_host(
        read_ahead_s=args.deadline,
        proc_root=proc,
        sys_root=sys,
        ask_windows=not getattr(args, "no_windows", False),
        windows_every_s=windows_every_s,
    )


def reader_options(args: Namespace, **options: Any) -> ReaderOptions:
    """How a process that reads again and again reads this host; other *options* are those of the reader."""
    from vram.live_reader import ReaderOptions

    proc_root, sys_root = roots()
    return ReaderOptions(
        proc_root=proc_root,
        sys_root=sys_root,
        ask_windows=not args.no_windows,
        deadline_s=args.deadline,
        **options,
    )


def roots() -> tuple[str, str | None]:
    """Where /proc and /sys are: elsewhere in a container that has the host's mounted.

    Commands that act do not ask this: there a pid must mean the process that it names here.
    """
    return _root("VRAM_PROC_ROOT") or "/proc", _root("VRAM_SYS_ROOT")


def _root(variable: str) -> str | None:
    path = os.environ.get(variable) or None
    if path and not os.path.isdir(path):
        # Without this the answer would be that no process is there.
        raise UsageError(f"{variable} is {path}, which is not a folder", hint="mount it there, or unset it")
    return path


def read_survey(args: Namespace, host: LocalHost | None) -> Survey:
    """Survey *host*, or read a snapshot of another one."""
    if host is None:
        from vram.probes.bundle import STDIN, read

        if args.snapshot == STDIN and os.isatty(0):
            raise UsageError(
                "--from - reads a snapshot from standard input, which is a terminal",
                hint="ssh HOST vram snapshot -o - | vram why --from -",
            )
        return read(args.snapshot)
    from vram import reading
    from vram.reclaim.state import parked

    return reading.read_survey(host, args.deadline, parked)


def take_ledger(args: Namespace, host: LocalHost | None) -> Ledger:
    """Return the balanced ledger of what *args* point at, narrowed to the GPUs they name."""
    return narrowed(take_whole_ledger(args, host), args.gpu)


def take_whole_ledger(args: Namespace, host: LocalHost | None) -> Ledger:
    """The same with all GPUs."""
    from vram.ledger.build import build_ledger

    return build_ledger(read_survey(args, host))


def completeness(ledger: Ledger) -> ExitCode:
    """Return OK, or PARTIAL where some GPU or probe did not answer.

    A denied probe is no gap of this kind: the bytes are all there, and the answer says what
    another user could name. Process lists that are denied are one: no process is named.
    """
    from vram.diagnosis.verdict import is_missing

    if any(is_missing(gpu) for gpu in ledger.gpus):
        return ExitCode.PARTIAL
    if any(probe.status in ("failed", "timeout", "lost") for probe in ledger.probes):
        return ExitCode.PARTIAL
    return ExitCode.OK


def require_driver(ledger: Ledger) -> None:
    """Raise DriverMissing where there is no driver at all; one that hangs or fails is there."""
    from vram.diagnosis.verdict import without_driver

    probe = without_driver(ledger)
    if probe is not None:
        from vram.diagnosis.words import where_to_look

        raise DriverMissing(
            f"no NVIDIA driver answers on {ledger.host.name}: {probe.message or 'none installed'}; no"
            " AMD or Intel GPU was found either",
            hint=where_to_look(ledger.driver),
        )
