"""Caches of live processes: whose could be emptied, what a process released, and the driver's figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.inside import CacheLine, Trimmable, TrimReceipt
from vram.report.layout import RenderOptions, paragraph
from vram.units import counted, interruption, size

INJECTORS = {
    "agent": "through its vram agent",
    "jupyter": "through its Jupyter connection",
    "remote-exec": "by sys.remote_exec",
    "ptrace": "by ptrace",
}


# ---- before: `vram trim` without a pid touches nobody ----


class TrimmableReport(Struct, frozen=True, kw_only=True):
    """``vram trim --json`` without a pid: nobody was touched. ``refused`` have a reason each."""

    schema: Literal[1] = 1
    trimmable: tuple[Trimmable, ...]
    refused: tuple[Trimmable, ...]


def trimmable_report(found: Sequence[Trimmable]) -> TrimmableReport:
    return TrimmableReport(
        trimmable=tuple(each for each in found if each.via is not None),
        refused=tuple(each for each in found if each.via is None),
    )


def trimmable(report: TrimmableReport, options: RenderOptions) -> RenderableType:
    blocks: list[RenderableType] = [Text(_head(report), style="bold")]
    if report.trimmable:
        pids = " ".join(str(each.pid) for each in report.trimmable)
        blocks += [
            _trimmable_table(report.trimmable, options),
            Text(),
            Text("To release unused cached memory; the programs keep running:"),
            Text(f"  vram trim {pids}"),
            Text("To plan that together with memory of dead processes, with a question first:"),
            Text("  vram free --caches"),
        ]
    if report.refused:
        blocks += [Text(), Text("Not possible:")]
    for each in report.refused:
        where = f"pid {each.pid}, {_gpus(each)}, {size(each.nbytes)}: "
        blocks.append(paragraph("- ", Text(options.clean(where + each.reason)), options, indent=2))
    return Group(*blocks)


def _head(report: TrimmableReport) -> str:
    if report.trimmable:
        return (
            f"The caches of {counted(len(report.trimmable), 'process')} can be released. Nothing was touched."
        )
    if report.refused:
        return "No process's caches can be released from here. Nothing was touched."
    return "No process here holds GPU memory: nothing to trim."


def _trimmable_table(found: Sequence[Trimmable], options: RenderOptions) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "pid", "GPU", "holds", "via", "command"):
        table.add_column(heading, justify="right" if heading in ("pid", "holds") else "left", no_wrap=True)
    for each in found:
        command = options.short(each.command, max(12, options.width - 44))
        where = ",".join(map(str, each.gpus))
        cells = (str(each.pid), where, size(each.nbytes), each.via or "", command)
        table.add_row("", *map(Text, cells))
    return table


def _gpus(each: Trimmable) -> str:
    return f"GPU {','.join(map(str, each.gpus))}"


# ---- after: what came back ----


class TrimReport(Struct, frozen=True, kw_only=True):
    """``--json``. ``charged_*`` are the driver's figures, everything in ``answer`` the process's own."""

    schema: Literal[1] = 1
    trimmed: tuple[TrimReceipt, ...]
    refused: tuple[dict[str, Any], ...] = ()


def trimmed(receipt: TrimReceipt, options: RenderOptions) -> RenderableType:
    """Return one process's account."""
    answer = receipt.answer
    head = f"pid {receipt.target.process.pid}" + (f" · {receipt.target.user}" if receipt.target.user else "")
    command = options.short(receipt.target.command, max(20, options.measure - len(head) - 2))
    blocks: list[RenderableType] = [Text.assemble(options.clean(head), "  ", (command, "bold"))]
    if answer.lines:
        blocks.append(_table(answer.lines, options))
    blocks.append(paragraph("", _verdict(receipt), options, indent=2))
    blocks += [paragraph("- ", Text(options.clean(note)), options, indent=2) for note in _notes(receipt)]
    return Group(*blocks)


def _table(lines: Sequence[CacheLine], options: RenderOptions) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(min_width=12)
    table.add_column(min_width=6)
    for _ in range(3):
        table.add_column(justify="right", min_width=9)
    heads = ("", "", "where", "held", "unused", "freed")
    table.add_row(*(Text(head, style="dim") for head in heads))
    for line in lines:
        table.add_row("", *_cells(line, options))
    return table


def _cells(line: CacheLine, options: RenderOptions) -> tuple[Text, ...]:
    where = "host" if line.memory != "device" else "GPU" if line.device is None else f"cuda:{line.device}"
    returned = line.returned_bytes
    return (
        Text(options.clean(line.name)),
        Text(where),
        Text(_size(line.held)),
        Text(_size(line.reclaimable), style="dim"),
        Text(_size(returned), style="green" if returned and returned > 0 else ""),
    )


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


def _verdict(receipt: TrimReceipt) -> Text:
    cost = interruption(receipt.stopped_s, receipt.waited_s)
    how = f"{INJECTORS[receipt.via]}, in {receipt.took_s:.2f} s, {cost}"
    if receipt.charged_after is None or receipt.returned_bytes is None:
        return Text(f"The driver could not be read again ({how}).")
    said = "total memory in use on the GPU was" if receipt.whole_gpu else "the driver charged it with"
    figures = f": {said} {size(receipt.charged_before)}, now {size(receipt.charged_after)}"
    gave = receipt.returned_bytes > 0
    told = f"{size(receipt.returned_bytes)} freed" if gave else "nothing freed"
    return Text.assemble((told, "bold green" if gave else "bold"), f" {how}", figures)


def _notes(receipt: TrimReceipt) -> Iterator[str]:
    answer = receipt.answer
    if answer.dropped:
        yield f"dropped: {', '.join(answer.dropped)}"
    if answer.collected:
        yield f"{counted(answer.collected, 'unreachable object')} collected"
    kept = answer.exceptions_kept
    if kept:
        which = f"{counted(kept, 'exception')} kept by Python or IPython"
        yield f"{which}, with all variables of their frames; --tracebacks drops them"
    yield from answer.notes
