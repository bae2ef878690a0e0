"""Everything about one line: memory over time, evidence, cause, family, and what can be done."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from vram.ledger.holders import concerning, findings_about
from vram.model.finding import Finding
from vram.model.hold import STATES
from vram.model.ledger import Ledger
from vram.report import text, tree
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import parked_process
from vram.report.process_rows import ProcessRow
from vram.report.process_table import command_line, gpu_names, row_size
from vram.report.process_tree import who
from vram.top.history import trend
from vram.units import size

_WIDEST_TREND = 60


def basis(ledger: Ledger, findings: tuple[Finding, ...], row: ProcessRow) -> Hashable:
    """What the details of *row* are made of: while it is equal, they need not be drawn again."""
    if row.pid is None:
        return (row, tuple(each for each in findings if _is_about(each, row)))
    # Of a GPU only what is the process's own: how much of it is in use changes all the time.
    own = tuple(
        (gpu.index, gpu.entries, gpu.open_only, gpu.system) for gpu in concerning(ledger, row.pid).gpus
    )
    parked = tuple(each for each in ledger.parked if each.pid == row.pid)
    return (row.note, row.state, own, findings_about(findings, ledger, row.pid), parked)


def details(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    row: ProcessRow,
    points: Sequence[int],
    options: RenderOptions,
) -> list[RenderableType]:
    """Return the same as `vram why PID`, below what the line itself says and its memory over time."""
    blocks: list[RenderableType] = [*_summary(row, points, options)]
    if row.pid is None:
        about = tuple(each for each in findings if _is_about(each, row))
        return [*blocks, *text.process_blocks(concerning(ledger, -1), about, (), (), (), options)]
    for process in ledger.parked:
        if process.pid == row.pid:
            blocks.append(paragraph("", Text(options.clean(parked_process(process))), options))
    theirs = concerning(ledger, row.pid)
    about = findings_about(findings, ledger, row.pid)
    family = tree.family(who(ledger), row.pid, options)
    return [*blocks, *text.process_blocks(theirs, about, (), family, (), options)]


def _summary(row: ProcessRow, points: Sequence[int], options: RenderOptions) -> Iterator[RenderableType]:
    name = f"pid {row.pid}" if row.pid is not None else STATES[row.state].label
    facts = STATES[row.state]
    yield Text.assemble(
        (name, "bold"),
        options.clean(f" · {row_size(row)} on GPU {gpu_names(row)} · {facts.label}: {facts.meaning}"),
    )
    if row.command:
        yield Text(options.short(command_line(row), options.measure * 2), style="bold", overflow="fold")
    if row.note:
        yield Text(options.clean(row.note))
    if len(points) > 1:
        line = trend(points, min(len(points), _WIDEST_TREND), ascii_only=options.ascii)
        least, most = size(min(points)), size(max(points))
        range_text = most if least == most else f"{least} to {most}"
        yield Text(f"{line}  {range_text} in the last ten minutes", style="dim")


def _is_about(finding: Finding, row: ProcessRow) -> bool:
    """Whether a finding that names nobody concerns a row without a process."""
    numbers = {place.partition(":")[0] for place in row.gpus}
    return not finding.pids and any(str(gpu) in numbers for gpu in finding.gpus)
