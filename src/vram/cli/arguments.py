"""The words of a command line: the parser, and how pids, GPUs and durations are read."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from vram.cli.terminal import columns
from vram.errors import UsageError
from vram.units import parse_duration, parse_size, spell_duration

if TYPE_CHECKING:
    from vram.model.inside import Via
    from vram.model.ledger import GpuLedger, Ledger

DEADLINE_S = 5.0
# poll(2) counts milliseconds in 31 bits: 25 days would be too much for it.
MAX_WAIT_S = 14 * 86400


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(columns(), 100) - 2)


class Parser(ArgumentParser):
    """An argument parser that raises UsageError."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **options)

    def add_flag(self, *names: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names, action="store_true", help=help)

    def add_duration(
        self,
        *names: str,
        help: str,
        default: float | None = None,
        zero: bool = False,
        dest: str | None = None,
    ) -> None:
        """Add an option that takes a DURATION; *help* need not say its default. *zero* allows 0s."""
        if default is not None:
            help += f" (default: {spell_duration(default) if default else 'do not wait'})"
        read = read_duration_or_zero if zero else read_duration
        dest = dest or names[-1].lstrip("-").replace("-", "_")
        self.add_argument(*names, type=read, default=default, dest=dest, metavar="DURATION", help=help)

    def add_size(self, name: str, **options: Any) -> None:
        """Add a SIZE, like 20GiB."""
        self.add_argument(name, type=parse_size, metavar="SIZE", **options)

    def add_pid(self, name: str, **options: Any) -> argparse.Action:
        """Add the PID of a process."""
        return self.add_argument(name, type=pid_number, metavar="PID", **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As argparse reads a word; a size or a duration that is wrong names its option too."""
        try:
            return super()._get_value(action, arg_string)
        except UsageError as error:
            name = "/".join(action.option_strings) or action.metavar or action.dest
            raise UsageError(f"{name}: {error}", hint=error.hint) from error


def accept_old_option(parser: Parser, action: argparse.Action, *flags: str) -> None:
    """Read *flags*, the old names of an option, as before; neither help nor completion lists them."""
    parser._option_string_actions.update(dict.fromkeys(flags, action))


def add_yes_argument(parser: Parser) -> None:
    """Add --yes to a command that acts without a question: scripts may say it wherever something is done."""
    parser.add_flag("--yes", "-y", help="accepted, as by every command that acts")


def add_deadline_argument(parser: Parser) -> None:
    parser.add_duration(
        "--deadline", default=DEADLINE_S, help="give up on a driver that does not answer in time"
    )


def add_reading_arguments(parser: Parser) -> None:
    """Add --deadline and --no-windows, for commands that read the driver and in WSL2 ask Windows."""
    add_deadline_argument(parser)
    parser.add_flag("--no-windows", help="in WSL2, do not query Windows (starts no PowerShell)")


def add_gpus_argument(parser: Parser) -> None:
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU[,GPU...]",
        help="only these GPUs, by number, UUID or PCI address; 0:1 is MIG device 1 of GPU 0 (repeatable)",
    )


def add_socket_argument(parser: Parser) -> None:
    parser.add_argument(
        "--socket",
        default=argparse.SUPPRESS,  # so that it may also stand before a word of `vram serve`
        metavar="PATH",
        help="the socket of the service (default: /run/vram/vram.sock, then your own)",
    )


def add_attach_arguments(parser: Parser, deadline_s: float) -> None:
    """Add --via and --deadline, for commands that enter a process."""
    from vram.model.inside import Via

    parser.add_argument(
        "--via",
        choices=("auto", *get_args(Via)),
        default="auto",
        help="how to attach (default: the safest that works)",
    )
    parser.add_duration("--deadline", default=deadline_s, help="give up after this time")


def wanted_via(args: Namespace) -> Via | None:
    """What --via says; None where any way will do."""
    return None if args.via == "auto" else args.via


# ---- pids, durations ----


def pid_number(text: str) -> int:
    """Read a pid; kill(2) gives zero and negative numbers a meaning that is not wanted here."""
    return whole_number((1 << 31) - 1, "a pid")(text)


def whole_number(most: int, what: str = "", least: int = 1) -> Callable[[str], int]:
    """Return how a whole number from *least* to *most* is read; *what* names it where another word stands."""
    named = what or f"a number from {least} to {most}"

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {named}")
        return int(text)

    return read


def read_duration(text: str) -> float:
    """Read a duration above zero, like 60s or 5min, as seconds."""
    seconds = read_duration_or_zero(text)
    if not seconds:
        raise UsageError(f"{text!r} is too short", hint="write it like 250ms, 60s, 5min or 2h")
    return seconds


def read_duration_or_zero(text: str) -> float:
    """Read for how long to wait; 0s means not at all."""
    seconds = parse_duration(text)
    if seconds > MAX_WAIT_S:
        raise UsageError(f"{text!r} is too long", hint=f"at most {spell_duration(MAX_WAIT_S)} are possible")
    return seconds


# ---- the words of --gpu: a GPU by number, UUID or PCI address; a MIG device by UUID or as GPU:DEVICE ----

_HINT = "write --gpu 0 or --gpu 0,1; a UUID or PCI address; or 0:1 for MIG device 1 of GPU 0"
_NUMBER = r"[0-9]{1,4}"
_DEVICE = r"([0-9]{1,4}):([0-9]{1,4})"
_UUID = r"(?ai:(?:GPU|MIG)-[0-9a-f-]{1,40})"
_ADDRESS = r"(?ai:(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-7]))"

# A GPU; and its GPU instance and MIG device, where only those are meant.
Chosen = tuple[int, int | None, int | None]


def narrowed(ledger: Ledger, words: list[str] | None) -> Ledger:
    """Return *ledger* with only the GPUs that *words* name; without words, all of it."""
    if not words or not ledger.gpus:
        return ledger
    return select_gpus(ledger, [part.strip() for word in words for part in word.split(",")])


def select_gpus(ledger: Ledger, words: Sequence[str]) -> Ledger:
    """Return *ledger* with only the GPUs and instances that *words* name, in its own order."""
    from msgspec.structs import replace

    chosen = {_find(ledger, word) for word in words}
    return replace(ledger, gpus=tuple(_choose(ledger, chosen)))


def _choose(ledger: Ledger, chosen: set[Chosen]) -> Iterator[GpuLedger]:
    from vram.ledger.instances import alone

    for gpu in ledger.gpus:
        if (gpu.index, None, None) in chosen:
            yield gpu
            continue
        for instance in gpu.instances:
            place = (gpu.index, instance.gpu_instance)
            named = [each.index for each in instance.devices if (*place, each.index) in chosen]
            if named:  # once, however many of its devices were named: their memory is the same
                yield alone(gpu, instance.gpu_instance, named[0])


def _find(ledger: Ledger, word: str) -> Chosen:
    word = _address(word)
    named = [place for place, names in _names(ledger) if word and word in names]
    if not named and re.fullmatch(_UUID, word):
        # CUDA takes the beginning of a UUID too, as long as it is enough to tell.
        start = word.lower()
        named = [place for place, names in _names(ledger) if any(n.lower().startswith(start) for n in names)]
    if len(set(named)) == 1:
        return named[0]
    if named:
        raise UsageError(f"{word} is the beginning of several UUIDs", hint="write more of it")
    if not any(re.fullmatch(form, word) for form in (_NUMBER, _DEVICE, _UUID, _ADDRESS)):
        raise UsageError(f"{word!r} is not a GPU", hint=_HINT)
    known = [f"{names[0]} ({_label(ledger, place)})" for place, names in _names(ledger)]
    raise UsageError(f"there is no GPU {word}", hint="these exist: " + ", ".join(known))


def _names(ledger: Ledger) -> Iterator[tuple[Chosen, tuple[str, ...]]]:
    for gpu in ledger.gpus:
        address = gpu.facts.bus_id if gpu.facts else None
        yield (gpu.index, None, None), (str(gpu.index), gpu.uuid or "", _address(address or ""))
        for instance in gpu.instances:
            for device in instance.devices:
                place = (gpu.index, instance.gpu_instance, device.index)
                yield place, (f"{gpu.index}:{device.index}", device.uuid)


def _address(word: str) -> str:
    """A PCI address in one spelling: NVML writes eight digits of domain, the kernel four."""
    found = re.fullmatch(_ADDRESS, word)
    return f"{(found[1] or '').lstrip('0') or '0'}:{found[2]}".lower() if found else word


def _label(ledger: Ledger, place: Chosen) -> str:
    from vram.ledger.instances import alone

    gpu = next(each for each in ledger.gpus if each.index == place[0])
    return gpu.name if place[1] is None else alone(gpu, place[1], place[2]).name


def gpu_numbers(words: list[str]) -> set[int]:
    """Read the words of ``--gpu`` for commands that act: on whole GPUs."""
    parts = [part.strip() for word in words for part in word.split(",")]
    for part in parts:
        if ":" in part or part.upper().startswith("MIG-"):
            raise UsageError(
                f"{part!r} is a MIG device, but memory is freed by whole GPUs or by processes",
                hint="give the GPU's number, or the process with --pid; `vram who` lists both",
            )
        if not (part.isascii() and part.isdigit()):
            raise UsageError(f"{part!r} is not a GPU number", hint="write it like --gpu 0 or --gpu 0,1")
    return set(map(int, parts))
