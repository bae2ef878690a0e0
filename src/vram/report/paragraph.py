"""Prose beside a mark: wrapped under a hanging indent, never wider than reads well."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from vram.report.look import Look


def paragraph(mark: str, body: Text, look: Look, *, indent: int = 0, style: str = "dim") -> RenderableType:
    """Return *body* wrapped beside its *mark*, under a hanging indent."""
    grid = Table.grid(padding=0)
    lead = " " * indent + mark
    grid.add_column(width=len(lead), no_wrap=True)
    grid.add_column(width=max(10, look.measure - len(lead)), overflow="fold")
    grid.add_row(Text(lead, style=style), body)
    return grid
