"""How kinds, severities and lines look: one glyph and one colour each, with or without Unicode."""

from __future__ import annotations

from typing import NamedTuple

from vram.model.kinds import Kind
from vram.report.escape import ascii_only, inert


class Ink(NamedTuple):
    """One kind's place in the bar: it can be told apart without colour too."""

    glyph: str
    ascii_glyph: str
    style: str


# In the order in which the bar and the table show them: what somebody holds comes first.
KINDS: dict[Kind, Ink] = {
    "orphaned": Ink("▚", "O", "red"),
    "exported": Ink("▞", "E", "magenta"),
    "hidden": Ink("▓", "H", "yellow"),
    "unattributed": Ink("?", "?", "yellow"),
    "windows": Ink("▞", "W", "blue"),
    "guest": Ink("▓", "G", "cyan"),
    "process": Ink("█", "#", "cyan"),
    "live": Ink("█", "#", "cyan"),
    "cached": Ink("▓", "=", "blue"),
    "fragmented": Ink("▚", "%", "blue"),
    "context": Ink("▒", "+", "blue"),
    "overhead": Ink("░", "~", "bright_black"),
    "reserved": Ink("▒", "R", "bright_black"),
    "unreported": Ink("╌", "u", "bright_black"),
    "unassigned": Ink("╍", "-", "bright_black"),
    "free": Ink("·", ".", "green"),
}

# What an entry without a holder is, in words.
MEANINGS: dict[Kind, str] = {
    "free": "nobody's",
    "reserved": "the driver, its firmware and ECC",
    "unassigned": "given to no MIG instance: nobody can use it",
    "overhead": "the driver itself, beyond what it charges to anybody",
    "hidden": "a process that cannot be seen from here",
    "unattributed": "nobody could be named",
    "unreported": "free, or held by somebody who cannot be seen: the driver does not report it",
    "guest": "Linux processes together, as Windows counts them",
    "orphaned": "whoever keeps it could not be named",
    "exported": "whoever keeps it could not be named",
}

SEVERITIES = {"problem": ("●", "!", "red"), "warning": ("▲", "^", "yellow"), "info": ("○", "o", "cyan")}


class Look(NamedTuple):
    """The surface that is written on."""

    width: int
    ascii: bool = False
    brief: bool = False
    """Leave out how we know and why, so that a screen that is redrawn holds more of the answer."""
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
        """Return *text* safe for this surface."""
        return ascii_only(text) if self.ascii else inert(text)

    def short(self, text: str, width: int) -> str:
        """Return *text* safe for this surface, its middle left out where it is wider than *width*."""
        from vram.report.shorten import shorten

        return shorten(self.clean(text), width, mark=self.clean("…"))

    def swatch(self, kind: Kind, cells: int = 1) -> tuple[str, str]:
        """Return so many cells of a kind, and the style to print them in."""
        ink = KINDS[kind]
        if self.painted and kind != "free":
            return " " * cells, f"on {ink.style}"
        return (ink.ascii_glyph if self.ascii else ink.glyph) * cells, ink.style
