"""What processes report of themselves: their arrays (``vram inside``), their caches (``vram trim``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.inside import ArrayGroup, CacheLine, InsideReceipt, Split, Trimmable, TrimReceipt
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import one_line
from vram.units import counted, interruption, size

ROWS = 12
_SIZE, _GPU, _WHAT = 10, 4, 26


def inside(receipt: InsideReceipt, options: RenderOptions, *, everything: bool = False) -> RenderableType:
    """Return one process's account; *everything*: all rows of it."""
    answer = receipt.answer
    blocks: list[RenderableType] = [
        _head(receipt, options),
        paragraph("", _summary(receipt, options), options, indent=2),
    ]
    shown = answer.groups if everything else answer.groups[:ROWS]
    if shown:
        blocks += [Text(), _table(shown, receipt, options)]
    blocks += _rest(receipt, len(shown), options)
    blocks.append(Text())
    blocks += [paragraph("", _sum(split), options, indent=2) for split in receipt.splits]
    blocks += [paragraph("- ", note, options, indent=2) for note in _notes(receipt)]
    return Group(*blocks)


def largest_arrays(receipt: InsideReceipt, options: RenderOptions, count: int = 5) -> list[RenderableType]:
    """Return the few largest arrays of a process, as a part of what is told about it."""
    groups = receipt.answer.groups[:count]
    return [Text("Its largest arrays", style="bold"), _table(groups, receipt, options)] if groups else []


def _head(receipt: InsideReceipt, options: RenderOptions) -> Text:
    target = receipt.target
    parts = [f"pid {target.process.pid}", *([target.user] if target.user else [])]
    head = options.clean(" · ".join([*parts, f"Python {receipt.answer.python}"]))
    command = options.short(one_line(target.command), max(20, options.measure - len(head) - 2))
    return Text.assemble(head, "  ", (command, "bold"))


def _summary(receipt: InsideReceipt, options: RenderOptions) -> Text:
    answer = receipt.answer
    live = "no array on a GPU"
    if answer.arrays:
        count = f"{answer.arrays:,} {'array' if answer.arrays == 1 else 'arrays'}"
        live = f"{size(answer.nbytes)} in {count}{_of(receipt)}"
    cost = interruption(receipt.stopped_s, receipt.waited_s)
    how = f"queried {INJECTORS[receipt.via]}, {receipt.took_s:.2f} s; {cost}"
    return Text.assemble((options.clean(live), "bold"), options.clean(f" · {how}"))


def _of(receipt: InsideReceipt) -> str:
    """Of which frameworks, and how much of each where there are several."""
    totals = {name: nbytes for name, nbytes in receipt.answer.frameworks.items() if nbytes}
    if len(totals) == 1:
        return f" of {next(iter(totals))}"
    largest = sorted(totals.items(), key=lambda each: -each[1])
    return f" ({', '.join(f'{name} {size(nbytes)}' for name, nbytes in largest)})"


def _table(groups: Sequence[ArrayGroup], receipt: InsideReceipt, options: RenderOptions) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_SIZE, justify="right")
    table.add_column(width=_GPU)
    table.add_column(width=_WHAT, overflow="fold")
    table.add_column(width=max(20, options.width - _SIZE - _GPU - _WHAT - 8), overflow="fold")
    table.add_row(*(Text(head, style="dim") for head in ("size", "GPU", "what", "held by")))
    for group in groups:
        table.add_row(*_cells(group, receipt, options))
    return table


def _cells(group: ArrayGroup, receipt: InsideReceipt, options: RenderOptions) -> tuple[Text, ...]:
    index = None if group.device is None else receipt.gpu_of.get(group.device)
    where = "" if group.device is None else f"c:{group.device}" if index is None else str(index)
    held_by = Text(options.clean(group.held_by))
    note = "shares memory listed above" if group.is_shared and not group.note else group.note
    if note:
        held_by = Text.assemble(held_by, "\n", (options.clean(note), "dim"))
    shown = Text(size(group.nbytes), style="dim" if group.is_shared else "")
    return shown, Text(where), Text(options.clean(what(group))), held_by


def what(group: ArrayGroup) -> str:
    """Its dtype and shape, as one writes them, and how many there are."""
    inner = ", ".join(map(str, group.shape)) + "," * (len(group.shape) == 1)
    shape = f"{group.dtype} ({inner})" if group.shape else group.dtype
    return shape if group.count == 1 else f"{group.count:,} × {shape}"


def _rest(receipt: InsideReceipt, shown: int, options: RenderOptions) -> Iterator[RenderableType]:
    answer = receipt.answer
    hidden, left = answer.groups[shown:], answer.left_out
    nbytes = sum(group.nbytes for group in hidden) + left.nbytes
    count = len(hidden) + left.groups
    if count:
        more = "; --all shows them" if hidden and not left.groups else ""
        more = "; --all shows more of them" if hidden and left.groups else more
        words = f"… and {counted(count, 'smaller row')}, {size(nbytes)} together{more}"
        yield paragraph("", Text(options.clean(words), style="dim"), options, indent=2)


def _sum(split: Split) -> Text:
    parts = [
        (split.arrays, "in arrays"),
        (split.unseen, "in use without a Python array"),
        (split.cached, "cached"),
        (split.pooled, "in pools that do not shrink"),
        (split.rest, "context and other"),
    ]
    words = ", ".join(f"{size(nbytes)} {name}" for nbytes, name in parts if nbytes)
    return Text.assemble((f"GPU {split.gpu}: {size(split.charged)}", "bold"), f" = {words}")


def _notes(receipt: InsideReceipt) -> Iterator[str]:
    answer = receipt.answer
    if answer.was_cut:
        yield "the search ran out of time, and may have missed arrays and names: raise --deadline"
    if any(split.cached for split in receipt.splits):
        yield f"`vram trim {receipt.target.process.pid}` releases what is cached"
    cycles = sum(group.nbytes for group in answer.groups if group.kind == "cycle")
    if cycles:
        pid = receipt.target.process.pid
        yield f"{size(cycles)} is held only by reference cycles: `vram trim {pid} --collect` frees it"
    if not answer.arrays:
        yield from _without_arrays(receipt)
    yield from answer.notes


def _without_arrays(receipt: InsideReceipt) -> Iterator[str]:
    if any(split.unseen for split in receipt.splits):
        yield "the memory in use belongs to native code: a compiled model, an engine, a workspace"
    elif receipt.splits:
        yield "no framework here has arrays: the rest is the context, or allocated by native code"


# ---- caches: whose could be emptied, what a process released, and the driver's figures ----


INJECTORS = {
    "agent": "through its vram agent",
    "jupyter": "through its Jupyter connection",
    "remote-exec": "by sys.remote_exec",
    "ptrace": "by ptrace",
    "native": "by a library that was loaded for it",
}


# ---- before: `vram trim` without a pid touches no process ----


class TrimmableReport(Struct, frozen=True, kw_only=True):
    """``vram trim --json`` without a pid: no process was touched. ``refused`` have a reason each."""

    schema: Literal[1] = 1
    trimmable: tuple[Trimmable, ...]
    refused: tuple[Trimmable, ...]


def trimmable_report(found: Sequence[Trimmable]) -> TrimmableReport:
    return TrimmableReport(
        trimmable=tuple(each for each in found if each.via is not None),
        refused=tuple(each for each in found if each.via is None),
    )


def trimmable(report: TrimmableReport, options: RenderOptions) -> RenderableType:
    blocks: list[RenderableType] = [Text(_trimmable_head(report), style="bold")]
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
        where = f"pid {each.pid}, {_gpus(each)}, {_size(each.nbytes)}: "
        blocks.append(paragraph("- ", where + each.reason, options, indent=2))
    return Group(*blocks)


def _trimmable_head(report: TrimmableReport) -> str:
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
        command = options.short(one_line(each.command), max(12, options.width - 44))
        where = ",".join(map(str, each.gpus))
        cells = (str(each.pid), where, _size(each.nbytes), each.via or "", command)
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
    command = options.short(one_line(receipt.target.command), max(20, options.measure - len(head) - 2))
    blocks: list[RenderableType] = [Text.assemble(options.clean(head), "  ", (command, "bold"))]
    if answer.lines:
        blocks.append(_caches_table(answer.lines, options))
    blocks.append(paragraph("", _trim_verdict(receipt), options, indent=2))
    blocks += [paragraph("- ", note, options, indent=2) for note in _trim_notes(receipt)]
    return Group(*blocks)


def _caches_table(lines: Sequence[CacheLine], options: RenderOptions) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(min_width=12)
    table.add_column(min_width=6)
    for _ in range(3):
        table.add_column(justify="right", min_width=9)
    heads = ("", "", "where", "held", "unused", "freed")
    table.add_row(*(Text(head, style="dim") for head in heads))
    for line in lines:
        table.add_row("", *_cache_cells(line, options))
    return table


def _cache_cells(line: CacheLine, options: RenderOptions) -> tuple[Text, ...]:
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


def _trim_verdict(receipt: TrimReceipt) -> Text:
    cost = interruption(receipt.stopped_s, receipt.waited_s)
    how = f"{INJECTORS[receipt.via]}, in {receipt.took_s:.2f} s, {cost}"
    if receipt.charged_after is None or receipt.returned_bytes is None:
        return Text(f"The driver could not be read again ({how}).")
    said = "total memory in use on the GPU was" if receipt.whole_gpu else "the driver charged it with"
    figures = f": {said} {size(receipt.charged_before)}, now {size(receipt.charged_after)}"
    gave = receipt.returned_bytes > 0
    told = f"{size(receipt.returned_bytes)} freed" if gave else "nothing freed"
    return Text.assemble((told, "bold green" if gave else "bold"), f" {how}", figures)


def _trim_notes(receipt: TrimReceipt) -> Iterator[str]:
    answer = receipt.answer
    if answer.dropped:
        yield f"dropped: {', '.join(answer.dropped)}"
    if answer.collected:
        yield f"{counted(answer.collected, 'unreachable object')} collected"
    kept = answer.exceptions_kept
    if kept:
        which = f"{counted(kept, 'exception')} kept by Python or IPython"
        yield f"{which}, with all variables of their frames; --tracebacks drops them"
    if receipt.via == "native":
        yield "pools that the program made and does not use as a device's pool cannot be listed, and stay"
    yield from answer.notes
