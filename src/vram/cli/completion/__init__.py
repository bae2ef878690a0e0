"""Completion for shells: scripts made from the program's own parsers, and words asked for at TAB.

What cannot change while a version is installed (commands, options, codes, names) stands in the
script. Processes and GPUs are asked for when TAB is pressed, with a short deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module

from vram.cli import grammar
from vram.cli.grammar import CommandSpec

SHELLS = ("bash", "zsh", "fish")
LIVE = ("pid", "parked", "gpu")


def script(shell: str) -> str:
    """What *shell* has to read to complete vram's words."""
    leaf = import_module(f"vram.cli.completion.{shell}")
    return str(leaf.script(grammar.commands()))


def patterns(commands: Sequence[CommandSpec], quote: Callable[[str], str]) -> dict[str, list[str]]:
    """How a walk over the words that stand already reads COMMAND:WORD: words that lead to a command below,
    options whose value is the next word, and -- before another command line."""

    def each(command: CommandSpec, words: Iterable[str]) -> Iterator[str]:
        return (quote(f"{' '.join(command.words)}:{word}") for word in words)

    return {
        "below": [one for spec in commands for one in each(spec, (sub.words[-1] for sub in spec.commands))],
        "valued": [
            one for spec in commands for option in spec.valued_options for one in each(spec, option.flags)
        ],
        "runners": [one for spec in commands if spec.runs_another for one in each(spec, ("--",))],
    }


def quoted(text: str) -> str:
    """*text* in single quotes for a Bourne shell."""
    return "'" + text.replace("'", "'\\''") + "'"
