"""Completion for shells: scripts made from the program's own parsers, and words asked for at TAB.

What cannot change while a version is installed (commands, options, codes, names) stands in the
script. Processes and GPUs are asked for when TAB is pressed, with a short deadline.
"""

from __future__ import annotations

from importlib import import_module

from vram.cli import grammar

SHELLS = ("bash", "zsh", "fish")
LIVE = ("pid", "parked", "gpu")


def script(shell: str) -> str:
    """What *shell* has to read to complete vram's words."""
    leaf = import_module(f"vram.cli.completion.{shell}")
    return str(leaf.script(grammar.commands()))


def quoted(text: str) -> str:
    """*text* in single quotes for a Bourne shell."""
    return "'" + text.replace("'", "'\\''") + "'"
