"""``vram completion``: what a shell reads to complete vram's words at TAB.

    source <(vram completion bash)                                  in ~/.bashrc
    vram completion zsh > "${fpath[1]}/_vram"                       once; any folder of $fpath
    vram completion fish > ~/.config/fish/completions/vram.fish     once

Commands, options, codes and names stand in the script itself. Pids, parked processes and GPUs
are looked up when TAB is pressed; where no driver answers within a second there are none.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace

from vram.cli.completion import LIVE, SHELLS
from vram.cli.terminal import emit
from vram.errors import ExitCode, UsageError, VramError

NAME = "completion"
HELP = "print shell completion for bash, zsh or fish"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--list", choices=LIVE, dest="kind", help=SUPPRESS)


def run(args: Namespace) -> int:
    if args.kind is not None:
        return _words(args.kind)
    if args.shell is None:
        raise UsageError("which shell?", hint="vram completion bash, zsh or fish")
    from vram.cli.completion import script

    emit(script(args.shell))
    return ExitCode.OK


def _words(kind: str) -> int:
    """What a script asks for at TAB. Nobody reads complaints there: no words is the answer then."""
    from vram.cli.completion.words import live

    try:
        emit("".join(f"{line}\n" for line in live(kind)))
    except VramError as error:
        return error.exit_code
    return ExitCode.OK
