"""Standard output: how wide it is, whether it takes colour, and which characters it can carry."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Literal

from vram.errors import VramError
from vram.report.escape import ascii_only

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from vram.report.look import Look

# Nobody reads wider lines, and what pads them would fill the memory.
_WIDEST = 2000
_NEEDED = "─█▓▒░▚▞·…●▲○├└│"


def add_terminal_arguments(parser: ArgumentParser) -> None:
    """Add the options that say how text may look."""
    parser.add_argument("--ascii", action="store_true", help="bars and lines without Unicode")
    parser.add_argument("--no-color", action="store_true", help="no colour, also on a terminal")


def look_for(args: Namespace) -> Look:
    """Return the surface that standard output is."""
    from vram.report.look import Look

    return Look(width=columns(), ascii=args.ascii or not carries_unicode())


def columns() -> int:
    """Return how wide a line may be; 80 where nobody says.

    shutil would tell too, and brings three compression libraries along: 4 ms at every start.
    """
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return min(max(40, int(said)), _WIDEST)
    try:
        # A terminal that was never told its size says 0.
        return min(max(40, os.get_terminal_size(1).columns or 80), _WIDEST)
    except OSError:
        return 80


def carries_unicode() -> bool:
    """Say whether standard output's encoding has the glyphs that bars and trees are made of."""
    try:
        _NEEDED.encode(sys.stdout.encoding or "ascii")
    except (AttributeError, LookupError, UnicodeEncodeError):
        return False
    return True


def colored(args: Namespace) -> bool:
    """Colour on a terminal, unless refused; FORCE_COLOR asks for it elsewhere too."""
    if args.no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal() and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """Say whether a person watches standard output."""
    return sys.stdout is not None and sys.stdout.isatty()


def console_for(args: Namespace, look: Look) -> Console:
    """Return a console on standard output that adds nothing of its own to the text."""
    from rich.console import Console

    color = colored(args)
    return Console(
        width=look.width,
        force_terminal=color,
        color_system=_color_system() if color else None,
        no_color=not color,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )


def show(renderable: RenderableType, args: Namespace, look: Look) -> None:
    """Print *renderable* without the blanks that padding leaves at the ends of lines."""
    from io import StringIO

    console = console_for(args, look)
    # After a capture rich writes an empty string, which unbuffered streams hand on to the system.
    console.file = StringIO()
    with console.capture() as captured:
        # What must not be broken, as a command to paste, runs over the edge: cut off it is useless.
        console.print(renderable, crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())
    emit("".join(f"{line}\n" for line in lines))


def emit(answer: str | bytes) -> None:
    """Write the answer; what the encoding cannot carry is spelled out, not a crash."""
    if sys.stdout is None:
        raise VramError("standard output is closed")
    if isinstance(answer, str):
        encoding = sys.stdout.encoding or "utf-8"
        answer = answer.encode(encoding, "backslashreplace")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = ascii_only(error.strerror or str(error))
        raise VramError(f"cannot write to standard output: {reason}") from error


def _color_system() -> Literal["256", "truecolor"]:
    return "truecolor" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256"
