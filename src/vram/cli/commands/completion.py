"""``vram completion``: what a shell reads to complete vram's words at TAB.

    source <(vram completion bash)                                  in ~/.bashrc
    vram completion zsh > "${fpath[1]}/_vram"                       once; any folder of $fpath
    vram completion fish > ~/.config/fish/completions/vram.fish     once

Commands, options, codes and names stand in the script itself. Pids, parked processes and GPUs
are looked up when TAB is pressed; where no driver answers within a second there are none.
"""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.completion import LIVE, SHELLS
from vram.cli.terminal import emit
from vram.errors import ExitCode, UsageError, VramError
from vram.report.escape import ascii_only
from vram.units import size

if TYPE_CHECKING:
    from vram.model.ledger import Ledger

HELP = "print shell completion for bash, zsh or fish"

# The user waits for TAB.
DEADLINE_S = 1.0
MAX_MEANING_LENGTH = 60


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--list", choices=LIVE, dest="kind", help=SUPPRESS)


def run(args: Namespace) -> int:
    if args.kind is not None:
        try:
            emit("".join(f"{line}\n" for line in live(args.kind)))
        except VramError as error:  # at TAB errors are not shown: no words are the answer
            return error.exit_code
        return ExitCode.OK
    if args.shell is None:
        raise UsageError("no shell given", hint="vram completion bash, zsh or fish")
    from vram.cli.completion import script

    emit(script(args.shell))
    return ExitCode.OK


# ---- words that only this machine knows now ----


def live(kind: str) -> list[str]:
    """A line for each word of *kind*: the word, a tab, what it means."""
    found = {"pid": _holders, "gpu": _gpus, "parked": _parked}[kind]()
    return [f"{word}\t{_meaning(text)}" for word, text in found]


def _holders() -> Iterator[tuple[int, str]]:
    """Every process that holds memory, largest first."""
    from vram.ledger.processes import processes

    holding = [each for each in processes(_ledger()).values() if each.charged or each.retained]
    for process in sorted(holding, key=lambda each: (-each.nbytes, each.pid)):
        amount = size(process.nbytes) if process.nbytes or not process.has_unknown_size else "unknown size"
        yield process.pid, f"{amount} {process.holder.command or '?'}"


def _gpus() -> Iterator[tuple[int, str]]:
    for gpu in _ledger().gpus:
        yield gpu.index, gpu.name


def _parked() -> Iterator[tuple[int, str]]:
    from vram.cli.prestart import open_host
    from vram.reclaim.journal import parked_now

    for process in parked_now(open_host(reads_driver=False)):
        yield process.pid, "parked"


def _ledger() -> Ledger:
    from vram.accounting import take_ledger
    from vram.cli.prestart import open_host

    return take_ledger(open_host(read_ahead_s=DEADLINE_S), DEADLINE_S)


def _meaning(text: str) -> str:
    """One short line without a backslash: shells read those, and a process chose these words."""
    line = ascii_only(text).replace("\\", "/")
    return line if len(line) <= MAX_MEANING_LENGTH else line[: MAX_MEANING_LENGTH - 3] + "..."
