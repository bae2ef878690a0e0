"""What a command looks at: this host or a snapshot of another, all its GPUs or some."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli import early
from vram.errors import DriverMissing, ExitCode, UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.ledger import GpuLedger, Ledger
    from vram.model.observation import Survey

DEADLINE_S = 5.0
# Eleven days. poll(2) counts milliseconds in 31 bits: twice as long would be too much for it.
LONGEST_S = 1_000_000


def add_source_arguments(parser: ArgumentParser) -> None:
    """Add the options that choose what is looked at."""
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU[,GPU...]",
        help="only these GPUs, by number, UUID or PCI address; 0:1 is MIG device 1 of GPU 0 (repeatable)",
    )
    parser.add_argument(
        "--from", dest="snapshot", metavar="FILE", help="judge a snapshot instead of this host"
    )
    add_deadline_argument(parser)
    add_windows_argument(parser)


def add_windows_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-windows", action="store_true", help="in WSL2, do not ask Windows: no PowerShell is started"
    )


def add_deadline_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE_S,
        metavar="S",
        help="give up on a driver that does not answer within S seconds (default: %(default)g)",
    )


def open_host(args: Namespace) -> LocalHost | None:
    """Return this host, being read from now on at the latest; None where a snapshot is judged.

    Whoever opens it first and imports the rest of what it needs after that saves the time
    of those imports.
    """
    if getattr(args, "snapshot", None):
        return None
    from vram.host.local import LocalHost

    proc, sys = roots()
    return LocalHost(
        proc,
        sys_root=sys,
        reader=early.take(),
        read_ahead_s=args.deadline,
        ask_windows=not getattr(args, "no_windows", False),
    )


def roots() -> tuple[str, str | None]:
    """Where /proc and /sys are: elsewhere in a container that has the host's mounted.

    Commands that act do not ask this: there a pid must mean the process that it names here.
    """
    return _root("VRAM_PROC_ROOT") or "/proc", _root("VRAM_SYS_ROOT")


def _root(variable: str) -> str | None:
    path = os.environ.get(variable) or None
    if path and not os.path.isdir(path):
        # Without this the answer would be that nobody is there.
        raise UsageError(f"{variable} is {path}, and that is no folder", hint="mount it there, or unset it")
    return path


def take_survey(args: Namespace, host: LocalHost | None) -> Survey:
    """Look at *host*, or read what was seen on another one."""
    if host is None:
        from vram.probes.bundle import read

        return read(args.snapshot)
    from vram.probes.survey import survey

    return survey(host, deadline_s=args.deadline)


def take_ledger(args: Namespace, host: LocalHost | None) -> Ledger:
    """Return the balanced ledger of what *args* point at, narrowed to the GPUs they name."""
    from vram.ledger.build import build_ledger

    ledger = build_ledger(take_survey(args, host))
    return narrowed(ledger if host is None else _with_parked(ledger, host), args.gpu)


def _with_parked(ledger: Ledger, host: LocalHost) -> Ledger:
    """*ledger* with the processes that this user parked: they hold nothing on a GPU now."""
    from vram.reclaim.state import has_parked

    if not has_parked():  # as nearly always, and then nothing more is loaded
        return ledger
    from msgspec.structs import replace

    from vram.reclaim.journal import parked_now

    return replace(ledger, parked=parked_now(host))


def narrowed(ledger: Ledger, words: list[str] | None) -> Ledger:
    """Return *ledger* with only the GPUs that *words* name; without words, all of it."""
    if not words or not ledger.gpus:
        return ledger
    from vram.cli.gpu_words import select

    return select(ledger, [part.strip() for word in words for part in word.split(",")])


def completeness(ledger: Ledger) -> ExitCode:
    """Return OK, or PARTIAL where some GPU or probe did not answer.

    A denied probe is no gap of this kind: the bytes are all there, and the answer says what
    another user could name. Process lists that are denied are one: nobody is named.
    """
    if any(_is_missing(gpu) for gpu in ledger.gpus):
        return ExitCode.PARTIAL
    if any(probe.status in ("failed", "timeout", "lost") for probe in ledger.probes):
        return ExitCode.PARTIAL
    return ExitCode.OK


def require_driver(ledger: Ledger) -> None:
    """Raise DriverMissing where there is no driver at all; one that hangs or fails is there."""
    if ledger.gpus or (ledger.driver is not None and ledger.driver.driver_version is not None):
        return
    for probe in ledger.probes:
        if probe.name == "nvml" and probe.status == "unsupported":
            from vram.diagnosis.words import where_to_look

            raise DriverMissing(
                f"no NVIDIA driver answers on {ledger.host.name}: {probe.message or 'it is not there'};"
                " no GPU of AMD or Intel was found either",
                hint=where_to_look(ledger.driver),
            )


def _is_missing(gpu: GpuLedger) -> bool:
    # Under MIG the whole GPU may be withheld from us while all its instances are told.
    told = [instance.total_bytes for instance in gpu.instances]
    unread = gpu.total_bytes is None and (not told or None in told)
    unlisted = gpu.status == "denied" and not gpu.instances
    return unread or unlisted or gpu.status in ("failed", "timeout", "lost")


def gpu_numbers(words: list[str]) -> set[int]:
    """Read the words of ``--gpu`` for commands that act: on whole GPUs."""
    parts = [part.strip() for word in words for part in word.split(",")]
    for part in parts:
        if ":" in part or part.upper().startswith("MIG-"):
            raise UsageError(
                f"{part!r} names a MIG device, and memory is given back by whole GPUs or by processes",
                hint="give the GPU's number, or the process with --pid; `vram who` names them",
            )
        if not (part.isascii() and part.isdigit()):
            raise UsageError(
                f"{part!r} is not the number of a GPU", hint="write it like --gpu 0 or --gpu 0,1"
            )
    return set(map(int, parts))


def pid_number(text: str) -> int:
    """Read a pid; kill(2) gives zero and negative numbers a meaning that nobody wants here."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise ArgumentTypeError(f"{text!r} is not a pid")
    return int(text)


def seconds(text: str) -> float:
    """Read a number of seconds above zero."""
    number = _seconds(text)
    if not 0 < number <= LONGEST_S:
        raise _no_seconds(text, "above zero")
    return number


def seconds_or_none(text: str) -> float:
    """Read a number of seconds for which one waits; zero means not at all."""
    number = _seconds(text)
    if not 0 <= number <= LONGEST_S:
        raise _no_seconds(text, "from zero")
    return number


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _no_seconds(text: str, least: str) -> Exception:
    from argparse import ArgumentTypeError

    return ArgumentTypeError(f"{text!r} is not a number of seconds {least} up to {LONGEST_S:,}")


def memory_size(text: str) -> int:
    """A size that says its unit: of a bare number nobody can tell whether bytes or GiB are meant."""
    from vram.units import parse_size

    nbytes = parse_size(text)
    if text.strip()[-1:].isdigit():
        raise UsageError(
            f"{text!r} has no unit", hint=f"write {text.strip()}GiB, or {text.strip()}B for bytes"
        )
    return nbytes
