"""Layout for people: glyphs and colours, widths, bars, paragraphs, and text that fits a line."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from vram.model.kinds import Kind
from vram.report.escape import ascii_only, inert

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


class KindStyle(NamedTuple):
    """How a kind is drawn in the bar: distinct without colour too."""

    glyph: str
    ascii_glyph: str
    style: str


# In the order in which the bar and the table show them: what somebody holds comes first.
KIND_STYLES: dict[Kind, KindStyle] = {
    "orphaned": KindStyle("▚", "O", "red"),
    "exported": KindStyle("▞", "E", "magenta"),
    "hidden": KindStyle("▓", "H", "yellow"),
    "unattributed": KindStyle("?", "?", "yellow"),
    "windows": KindStyle("▞", "W", "blue"),
    "guest": KindStyle("▓", "G", "cyan"),
    "process": KindStyle("█", "#", "cyan"),
    "live": KindStyle("█", "#", "cyan"),
    "cached": KindStyle("▓", "=", "blue"),
    "fragmented": KindStyle("▚", "%", "blue"),
    "context": KindStyle("▒", "+", "blue"),
    "overhead": KindStyle("░", "~", "bright_black"),
    "reserved": KindStyle("▒", "R", "bright_black"),
    "unreported": KindStyle("╌", "u", "bright_black"),
    "unassigned": KindStyle("╍", "-", "bright_black"),
    "free": KindStyle("·", ".", "green"),
}

# What an entry without a holder is, in words.
MEANINGS: dict[Kind, str] = {
    "free": "available",
    "reserved": "the driver, its firmware and ECC",
    "unassigned": "in no MIG instance: nobody can use it",
    "overhead": "the driver's own, charged to no process",
    "hidden": "a process that is not visible from here",
    "unattributed": "no holder was found",
    "unreported": "free, or held by a process that is not visible: the driver does not report it",
    "guest": "all Linux processes, as Windows counts them",
    "orphaned": "no holder was found",
    "exported": "no holder was found",
}

SEVERITIES = {"problem": ("●", "!", "red"), "warning": ("▲", "^", "yellow"), "info": ("○", "o", "cyan")}


class RenderOptions(NamedTuple):
    """How wide the output is, and what may be used on it."""

    width: int
    ascii: bool = False
    painted: bool = False
    """Colour stands behind blanks: in a picture, glyphs of an unknown font leave gaps in a bar."""

    @property
    def is_wide(self) -> bool:
        """Room for a column of its own that tells how we know."""
        return self.width >= 132

    @property
    def measure(self) -> int:
        """The width for prose: longer lines lose the reader."""
        return min(self.width, 108)

    def clean(self, text: str) -> str:
        """Return *text* safe for this output."""
        return ascii_only(text) if self.ascii else inert(text)

    def short(self, text: str, width: int) -> str:
        """Return *text* safe for this output, its middle left out where it is wider than *width*."""
        return shorten(self.clean(text), width, mark=self.clean("…"))

    def swatch(self, kind: Kind, cells: int = 1) -> tuple[str, str]:
        """Return so many cells of a kind, and the style to print them in."""
        style = KIND_STYLES[kind]
        if self.painted and kind != "free":
            return " " * cells, f"on {style.style}"
        return (style.ascii_glyph if self.ascii else style.glyph) * cells, style.style


# ---- bars and lines ----


def apportion(shares: Sequence[int], width: int) -> list[int]:
    """Divide *width* cells by *shares*, so that the cells sum to the width.

    Whatever is not zero gets at least one cell while there are enough: 500 MiB of a 140 GiB
    GPU must not vanish. The largest shares pay for that.
    """
    total = sum(shares)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    cells = _largest_remainders(shares, total, width)
    for at, share in enumerate(shares):
        if share > 0 and cells[at] == 0:
            richest = max(range(len(cells)), key=cells.__getitem__)
            if cells[richest] < 2:
                break
            cells[richest] -= 1
            cells[at] = 1
    return cells


def _largest_remainders(shares: Sequence[int], total: int, width: int) -> list[int]:
    cells = [share * width // total for share in shares]
    rests = sorted(range(len(shares)), key=lambda at: shares[at] * width % total, reverse=True)
    for at in rests[: width - sum(cells)]:
        cells[at] += 1
    return cells


def paragraph(
    mark: str, body: Text, options: RenderOptions, *, indent: int = 0, style: str = "dim"
) -> RenderableType:
    """Return *body* wrapped beside its *mark*, under a hanging indent, no wider than reads well."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=0)
    lead = " " * indent + mark
    grid.add_column(width=len(lead), no_wrap=True)
    grid.add_column(width=max(10, options.measure - len(lead)), overflow="fold")
    grid.add_row(Text(lead, style=style), body)
    return grid


def shorten(text: str, width: int, *, mark: str = "…") -> str:
    """Return *text* in at most *width* terminal cells: its middle is replaced by *mark*, both ends stay."""
    from rich.cells import cell_len

    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(mark)
    if room <= 0:
        return _head(text, width)
    head = _head(text, (room * 3 + 3) // 5)
    return head + mark + _tail(text, room - cell_len(head))


def padded(text: str, width: int) -> str:
    """Return *text* with blanks up to *width* terminal cells."""
    from rich.cells import cell_len

    return text + " " * max(0, width - cell_len(text))


def _head(text: str, width: int) -> str:
    from rich.cells import cell_len

    end, used = 0, 0
    while end < len(text) and used + cell_len(text[end]) <= width:
        used += cell_len(text[end])
        end += 1
    return text[:end]


def _tail(text: str, width: int) -> str:
    return _head(text[::-1], width)[::-1]


# ---- manual pages, which are docstrings: paragraphs and list items are wrapped anew ----


def manual_page(text: str, options: RenderOptions) -> str:
    """A docstring in lines that fit *options*; headings and code stay as they are written."""
    return "\n\n".join(_block(block, options) for block in text.rstrip().split("\n\n")) + "\n"


def listing(names: tuple[tuple[str, str], ...], options: RenderOptions) -> str:
    """A line for each name with its summary, which goes on under itself where it is long."""
    width = 2 + max(len(name) for name, _ in names) + 2
    lines = (f"{f'  {name}':<{width}}{summary}" for name, summary in names)
    return "".join(f"{part}\n" for line in lines for part in _folded(options.clean(line), width, options))


def _block(block: str, options: RenderOptions) -> str:
    lines = [options.clean(line) for line in block.split("\n")]
    head = 2 if len(lines) > 1 and lines[1] and not lines[1].strip("-") else 0
    if lines[head:] and lines[head].startswith("    "):  # code
        return "\n".join(lines)
    fitted = (line for part in _parts(lines[head:]) for line in part.fitted(options))
    return "\n".join([*lines[:head], *fitted])


class _Part:
    """One paragraph or one item of a list; its further lines stand under its words."""

    def __init__(self, first: str) -> None:
        self.indent = len(first) - len(first.lstrip(" -"))
        self.words = [first]

    def fitted(self, options: RenderOptions) -> list[str]:
        return _folded(" ".join(self.words), self.indent, options)


def _parts(lines: list[str]) -> list[_Part]:
    parts: list[_Part] = []
    for line in lines:
        if not parts or line.lstrip().startswith("- "):
            parts.append(_Part(line))
        else:
            parts[-1].words.append(line.strip())
    return parts


def _folded(text: str, indent: int, options: RenderOptions) -> list[str]:
    start = text[:indent]
    body = wrap(
        text[indent:],
        options.measure,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [start + body[0][indent:], *body[1:]] if body else [start.rstrip()]
