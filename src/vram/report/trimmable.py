"""Whose caches could be emptied, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.inside import Trimmable
from vram.report.layout import RenderOptions, paragraph
from vram.units import counted, size


class TrimmableReport(Struct, frozen=True, kw_only=True):
    """``vram flush --json`` without a pid: nobody was touched. ``refused`` have a reason each."""

    schema: Literal[1] = 1
    trimmable: tuple[Trimmable, ...]
    refused: tuple[Trimmable, ...]


def report(found: Sequence[Trimmable]) -> TrimmableReport:
    return TrimmableReport(
        trimmable=tuple(each for each in found if each.via is not None),
        refused=tuple(each for each in found if each.via is None),
    )


def text(told: TrimmableReport, options: RenderOptions) -> RenderableType:
    blocks: list[RenderableType] = [Text(_head(told), style="bold")]
    if told.trimmable:
        pids = " ".join(str(each.pid) for each in told.trimmable)
        blocks += [
            _table(told.trimmable, options),
            Text(),
            Text("To have what is only cached given back; the programs go on working:"),
            Text(f"  vram flush {pids}"),
            Text("To plan that together with leftovers of dead processes, and be asked:"),
            Text("  vram free"),
        ]
    if told.refused:
        blocks += [Text(), Text("Not these:")]
    for each in told.refused:
        where = f"pid {each.pid}, {_gpus(each)}, {size(each.nbytes)}: "
        blocks.append(paragraph("- ", Text(options.clean(where + each.reason)), options, indent=2))
    return Group(*blocks)


def _head(told: TrimmableReport) -> str:
    if told.trimmable:
        return f"Caches can be emptied in {counted(len(told.trimmable), 'process')}. Nothing was touched."
    if told.refused:
        return "No process's caches can be emptied from here. Nothing was touched."
    return "No process here holds GPU memory: there is nothing to flush."


def _table(found: Sequence[Trimmable], options: RenderOptions) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "pid", "GPU", "holds", "way in", "command"):
        table.add_column(heading, justify="right" if heading in ("pid", "holds") else "left", no_wrap=True)
    for each in found:
        command = options.short(each.command, max(12, options.width - 44))
        where = ",".join(map(str, each.gpus))
        cells = (str(each.pid), where, size(each.nbytes), each.via or "", command)
        table.add_row("", *map(Text, cells))
    return table


def _gpus(each: Trimmable) -> str:
    return f"GPU {','.join(map(str, each.gpus))}"
