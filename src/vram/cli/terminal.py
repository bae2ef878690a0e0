"""The terminal: its width, colour and characters; answers, questions, messages and progress."""

from __future__ import annotations

import os
import sys
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from vram.errors import UsageError, VramError
from vram.report.escape import ascii_only, inert
from vram.units import size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from vram.cli.arguments import Parser
    from vram.report.layout import RenderOptions

# People read no wider lines, and what pads them would fill the memory.
_WIDEST = 2000
_NEEDED = "─█▓▒░▚▞·…●▲○├└│"
_PROGRESS_CELLS = 24


def add_terminal_arguments(parser: Parser) -> None:
    """Add the options that say how text may look."""
    parser.add_flag("--ascii", help="draw bars and lines without Unicode")
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour output (default: %(default)s); NO_COLOR is respected",
    )
    parser.add_argument("--no-color", action="store_const", const="never", dest="color", help=SUPPRESS)


def render_options(args: Namespace) -> RenderOptions:
    """Return the surface that standard output is."""
    from vram.report.layout import RenderOptions

    return RenderOptions(
        width=columns(),
        ascii=args.ascii or not carries_unicode(),
        cut=is_fitted(),
        colored=colored(args),
    )


def columns() -> int:
    """Return how wide a line may be; 80 where neither COLUMNS nor a terminal says."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return min(max(40, int(said)), _WIDEST)
    try:
        # A terminal whose size was never set says 0.
        return min(max(40, os.get_terminal_size(1).columns or 80), _WIDEST)
    except OSError:
        return 80


def lines() -> int | None:
    """Return how many lines fit beside the prompt; None where output goes to a file or a pipe."""
    if not is_terminal():
        return None
    said = os.environ.get("LINES", "")
    try:
        count = int(said) if said.isdecimal() and int(said) else os.get_terminal_size(1).lines
    except OSError:
        return None
    return max(12, count - 1) if count else None


def is_fitted() -> bool:
    """Whether lines have to fit a width: on a terminal, and where COLUMNS says how wide a line may be."""
    return is_terminal() or os.environ.get("COLUMNS", "").isdecimal()


def carries_unicode() -> bool:
    """Say whether standard output's encoding has the glyphs that bars and trees are made of."""
    try:
        _NEEDED.encode(sys.stdout.encoding or "ascii")
    except (AttributeError, LookupError, UnicodeEncodeError):
        return False
    return True


def colored(args: Namespace) -> bool:
    """Colour on a terminal, unless refused; --color=always and FORCE_COLOR ask for it elsewhere too."""
    if args.color != "auto":
        return bool(args.color == "always")
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal() and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """Say whether a person watches standard output."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_dialogue() -> bool:
    """Say whether a person watches standard output and can answer."""
    return is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def ask(question: str) -> bool:
    """Ask the person at the terminal; anything but yes is no."""
    emit(f"\n{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def require_view(what: str, instead: str = "") -> None:
    """Raise UsageError where a live view cannot be shown: no terminal, a dumb one, no Textual."""
    from importlib.util import find_spec

    if not is_dialogue():
        raise UsageError(f"{what} needs a terminal", hint=instead)
    if os.environ.get("TERM") == "dumb":
        raise UsageError(f"{what} cannot draw on this terminal: TERM is dumb", hint=instead)
    if find_spec("textual") is None:
        from vram.installation import how_to_add

        raise UsageError(f"{what} needs Textual, which is not installed", hint=how_to_add("top"))


# ---- standard output: the answer ----


def _console(options: RenderOptions) -> Console:
    """Return a console on standard output that adds nothing of its own to the text."""
    from rich.console import Console

    color = options.colored
    true_color = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return Console(
        # Where nothing is cut, tables are as wide as what is in them: rich would narrow the column of pids.
        width=options.width if options.cut else _WIDEST,
        force_terminal=color,
        color_system=("truecolor" if true_color else "256") if color else None,
        no_color=not color,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )


def show(args: Namespace, draw: Callable[[RenderOptions], RenderableType]) -> None:
    """Print what *draw* makes for this terminal, without the blanks that padding leaves behind lines."""
    from io import StringIO

    options = render_options(args)
    console = _console(options)
    # After a capture rich writes an empty string, which unbuffered streams hand on to the system.
    console.file = StringIO()
    with console.capture() as captured:
        # What must not be broken, as a command to paste, runs over the edge: cut off it is useless.
        console.print(draw(options), crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())
    emit("".join(f"{line}\n" for line in lines))


def emit_json(report: Any) -> None:
    """Write *report* as one JSON object."""
    from vram.report.json import encode

    emit(encode(report))


def show_report(args: Namespace, report: Any, draw: Callable[[RenderOptions], RenderableType]) -> None:
    """Print *report*: one JSON object with --json, else what *draw* makes of it."""
    if args.json:
        emit_json(report)
    else:
        show(args, draw)


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


# ---- standard error: sentences, and a line that moves where a person watches ----


def say(sentence: str, below: Iterable[str] = ()) -> None:
    """Print a sentence and lines that belong to it on standard error; where that is closed, say nothing."""
    if sys.stderr is None or sys.stderr.closed:
        return
    lines = [f"vram: {inert(sentence)}", *map(inert, below)]
    try:
        print("\n".join(lines), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Point *stream* at nothing, or the interpreter complains when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _MovingLine:
    """A line on standard error that is drawn over again, if that is a terminal; otherwise it is silent."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def end(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


class Progress(_MovingLine):
    """How much of some memory has moved; where nothing is drawn, it asks for no figures."""

    def __init__(self) -> None:
        super().__init__()
        self._words = ""
        self._whole = 0
        self._first: int | None = None
        self._began = 0.0

    @property
    def watch(self) -> Progress | None:
        return self if self._live else None

    def begin(self, words: str, nbytes: int) -> None:
        self._words, self._whole, self._first = words, nbytes, None
        self._began = time.monotonic()
        self._draw(0)

    def __call__(self, used: dict[str, int]) -> None:
        now = sum(used.values())
        self._first = now if self._first is None else self._first
        self._draw(abs(self._first - now))

    def _draw(self, moved: int) -> None:
        full = min(_PROGRESS_CELLS, moved * _PROGRESS_CELLS // max(1, self._whole))
        bar = "#" * full + "." * (_PROGRESS_CELLS - full)
        spent_s = time.monotonic() - self._began
        self._write(f"{self._words} [{bar}] {size(moved)} of {size(self._whole)}, {spent_s:.0f} s")


class Counter(_MovingLine):
    """Says which of several things is under way."""

    def __init__(self, whole: int) -> None:
        super().__init__()
        self._whole, self._at = whole, 0

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def next(self, name: str) -> None:
        self._at += 1
        self._write(f"[{self._at}/{self._whole}] {name}")
