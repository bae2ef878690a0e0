"""Layout for people: glyphs and colours, widths, bars, paragraphs, and text that fits a line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from vram.model.ledger import Kind
from vram.report.escape import ascii_only, inert

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


class KindStyle(NamedTuple):
    """How a kind is drawn in the bar: distinct without colour too."""

    glyph: str
    ascii_glyph: str
    style: str


# In the order in which the bar and the table show them: what processes hold comes first.
KIND_STYLES: dict[Kind, KindStyle] = {
    "orphaned": KindStyle("▚", "G", "red"),
    "exported": KindStyle("▚", "G", "red"),
    "hidden": KindStyle("▓", "H", "yellow"),
    "unattributed": KindStyle("?", "?", "yellow"),
    "windows": KindStyle("▞", "W", "blue"),
    "guest": KindStyle("▓", "L", "cyan"),
    "process": KindStyle("█", "#", "cyan"),
    "live": KindStyle("█", "#", "cyan"),
    "cached": KindStyle("▓", "=", "blue"),
    "fragmented": KindStyle("▚", "%", "blue"),
    "outside": KindStyle("█", "#", "blue"),
    "context": KindStyle("▒", "+", "blue"),
    "overhead": KindStyle("░", "~", "bright_black"),
    "preallocated": KindStyle("░", "P", "blue"),
    "withheld": KindStyle("╍", "w", "yellow"),
    "cpu": KindStyle("▞", "C", "bright_black"),
    "reserved": KindStyle("▒", "R", "bright_black"),
    "unreported": KindStyle("╌", "u", "bright_black"),
    "unassigned": KindStyle("╍", "-", "bright_black"),
    "free": KindStyle("·", ".", "green"),
}

# What the kinds are called where the name that JSON has is not the word that the rest of vram uses.
_LABELS: dict[str, str] = {"orphaned": "ghost", "exported": "ghost", "outside": "outside frameworks"}


def label(kind: str) -> str:
    """Return what people call a kind: memory of a dead owner is a ghost, however it is held."""
    return _LABELS.get(kind, kind)


# What an entry without a holder is, in words.
MEANINGS: dict[Kind, str] = {
    "free": "available",
    "reserved": "the driver, its firmware and ECC",
    "unassigned": "in no MIG instance: no program can use it",
    "overhead": "the driver's own, charged to no process",
    "preallocated": "the driver's reserve for managed memory",
    "cpu": "CPU programs and the kernel",
    "withheld": "in use by other control groups, or kept for them",
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
    cut: bool = True
    """Lines have to fit the width. In a pipe they need not: grep must find what is there."""
    colored: bool = False
    """Colour is used, and bars have a legend: who sees a colour asks what it means."""

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
        """Return *text* safe for this output, its middle left out where lines are cut and it is wider."""
        clean = self.clean(text)
        return shorten(clean, width, mark=self.clean("…")) if self.cut else clean

    def mark(self, mark: tuple[str, str, str]) -> tuple[str, str]:
        """Return a glyph, or its form in ASCII, and its style."""
        glyph, ascii_glyph, style = mark
        return (ascii_glyph if self.ascii else glyph), style

    def swatch(self, kind: Kind, cells: int = 1) -> tuple[str, str]:
        """Return so many cells of a kind, and the style to print them in."""
        glyph, style = self.mark(KIND_STYLES[kind])
        return (" " * cells, f"on {style}") if self.painted and kind != "free" else (glyph * cells, style)


# ---- bars and lines ----


def apportion(shares: Sequence[int], width: int) -> list[int]:
    """Divide *width* cells by *shares*, so that the cells sum to the width.

    What is under half a cell gets none: drawn, it would look like ten times its size on a small bar. From
    half a cell on everything has one while there are enough, and the largest shares pay for that.
    """
    total = sum(shares)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    # Where all are so small, the largest one stands for them.
    least = min(total, 2 * width * max(shares))
    kept = [share if 2 * width * share >= least else 0 for share in shares]
    cells = _largest_remainders(kept, width)
    for at, share in enumerate(kept):
        if share > 0 and cells[at] == 0:
            richest = max(range(len(cells)), key=cells.__getitem__)
            if cells[richest] < 2:
                break
            cells[richest] -= 1
            cells[at] = 1
    return cells


def _largest_remainders(shares: Sequence[int], width: int) -> list[int]:
    total = sum(shares)
    cells = [share * width // total for share in shares]
    rests = sorted(range(len(shares)), key=lambda at: shares[at] * width % total, reverse=True)
    for at in rests[: width - sum(cells)]:
        cells[at] += 1
    return cells


def legend(kinds: Collection[Kind], options: RenderOptions) -> list[Text]:
    """What the colours of a bar mean, in one line; none where nothing is in colour, or all is free."""
    from rich.text import Text

    if not options.colored or set(kinds) <= {"free"}:
        return []
    line = Text(no_wrap=True, overflow="ellipsis")
    named: dict[tuple[str, str], str] = {}
    for kind in KIND_STYLES:
        if kind in kinds:
            named.setdefault(options.swatch(kind), label(kind))
    for (glyph, style), word in named.items():
        line.append(glyph, style=style).append(f" {word}  ", style="dim")
    line.rstrip()
    return [line]


def paragraph(
    mark: str, body: Text | str, options: RenderOptions, *, indent: int = 0, style: str = "dim"
) -> RenderableType:
    """Return *body* wrapped beside its *mark*, under a hanging indent, no wider than reads well.

    A plain string may be foreign: it is made safe for this output.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=0)
    lead = " " * indent + mark
    if lead:  # an empty column is one cell wide
        grid.add_column(width=len(lead), no_wrap=True)
    grid.add_column(width=max(10, options.measure - len(lead)), overflow="fold")
    text = Text(options.clean(body)) if isinstance(body, str) else body
    grid.add_row(*([Text(lead, style=style)] if lead else []), text)
    return grid


def shorten(text: str, width: int, *, mark: str = "…") -> str:
    """Return *text* in at most *width* terminal cells: its middle is replaced by *mark*, both ends stay.

    A number is there as a whole or not at all: a pid that has lost a digit is another process's.
    """
    from rich.cells import cell_len

    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(mark)
    if room <= 0:
        return _head(text, width)
    head = _head(text, (room * 3 + 3) // 5)
    return head + mark + _head(text[::-1], room - cell_len(head))[::-1]


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
    if text[end : end + 1].isdigit():
        while end and text[end - 1].isdigit():
            end -= 1
    return text[:end]


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
    fitted = (line for part in _parts(lines[head:]) for line in _folded(part, _indent(part), options))
    return "\n".join([*lines[:head], *fitted])


def _parts(lines: list[str]) -> list[str]:
    """Paragraphs and items of a list, each in one line."""
    parts: list[str] = []
    for line in lines:
        if not parts or line.lstrip().startswith("- "):
            parts.append(line)
        else:
            parts[-1] += f" {line.strip()}"
    return parts


def _indent(part: str) -> int:
    """Where the words of a part begin, under which its further lines stand."""
    return len(part) - len(part.lstrip(" -"))


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
