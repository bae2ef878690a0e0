"""Tables of a GPU's entries, and the line that shows that they balance; under MIG, one for each instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.ledger import Entry, GpuLedger, Instance, Kind, known_bytes
from vram.report.layout import KIND_STYLES, MEANINGS, RenderOptions, apportion, label, paragraph
from vram.report.phrases import command, identity, memory_figures, percent, sharing, windows_process
from vram.units import size

# Past this many lines the smallest plain ones share a line: a page of 500 equal workers
# hides the one that matters. JSON and `vram who` list them all.
FOLD_AFTER = 32
# Entries that are no plain use of memory matter one by one, but a reader cannot use thousands of them.
MAX_OF_A_KIND = 64
_MAX_REASONS = 32
_MAX_REASON_LENGTH = 600
_LAST: tuple[Kind, ...] = (
    *("cpu", "withheld", "preallocated", "overhead", "reserved", "unreported", "unassigned", "free"),
)
"""The order of what no process holds, after everything else."""
_NARROW_COLUMNS = 36


def entries_table(entries: Sequence[Entry], total_bytes: int | None, options: RenderOptions) -> Table:
    """Return a line per entry, largest holder first, and the sum; None: the total is unknown."""
    table = _grid(options)
    _entry_rows(table, entries, total_bytes, options)
    _sum_rows(table, known_bytes(entries), total_bytes, options)
    return table


def part_table(entries: Sequence[Entry], total_bytes: int | None, options: RenderOptions) -> Table:
    """Return a line for each of some entries of a GPU: they are not meant to sum to its total."""
    table = _grid(options)
    for entry in in_order(entries):
        table.add_row(
            *_figures(entry.kind, entry.nbytes, total_bytes, options), *_explanation(entry, options)
        )
    return table


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return what processes hold, by size, then overhead, the driver's reserve and what is free."""
    return sorted(
        entries, key=lambda e: (0 if e.kind_facts.held else 1 + _LAST.index(e.kind), -(e.nbytes or 0))
    )


def drawn_kinds(entries: Sequence[Entry], width: int) -> list[tuple[Kind, int]]:
    """Return the kinds that are large enough to be seen in a bar of *width* cells, and the cells of each."""
    kinds = list(KIND_STYLES)
    sums = [known_bytes(entry for entry in entries if entry.kind == kind) for kind in kinds]
    return [(kind, cells) for kind, cells in zip(kinds, apportion(sums, width), strict=True) if cells]


def fold(entries: Sequence[Entry]) -> tuple[list[Entry], list[list[Entry]]]:
    """Split into entries with a line of their own, and groups of small ones that share one.

    The first group are plain ones, past FOLD_AFTER lines; then those past MAX_OF_A_KIND of other kinds.
    """
    plain = [entry for entry in entries if entry.kind_facts.charged]
    surplus = len(entries) - FOLD_AFTER
    folded = [plain[-surplus:]] if surplus > 1 and plain else []
    alike: dict[Kind, list[Entry]] = {}
    for entry in entries:
        if not entry.kind_facts.charged:
            alike.setdefault(entry.kind, []).append(entry)
    folded += [each[MAX_OF_A_KIND:] for each in alike.values() if len(each) > MAX_OF_A_KIND + 1]
    hidden = {id(entry) for group in folded for entry in group}
    return [entry for entry in entries if id(entry) not in hidden], folded


def _entry_rows(
    table: Table, entries: Sequence[Entry], total_bytes: int | None, options: RenderOptions
) -> None:
    shown, folded = fold(in_order(entries))
    for entry in shown:
        if folded and not entry.kind_facts.held:
            _folded_rows(table, folded, total_bytes, options)
            folded = []
        table.add_row(
            *_figures(entry.kind, entry.nbytes, total_bytes, options), *_explanation(entry, options)
        )
    _folded_rows(table, folded, total_bytes, options)


def _grid(options: RenderOptions) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=10, justify="right")
    table.add_column(width=6, justify="right")
    table.add_column(width=14)
    rest = options.width - _NARROW_COLUMNS
    if options.is_wide:
        table.add_column(width=rest // 2 - 1, overflow="fold")
        table.add_column(width=rest - rest // 2 - 1, overflow="fold")
    else:
        table.add_column(width=rest, overflow="fold")
    dim = (
        ("size", "share", "what", "who", "how we know")
        if options.is_wide
        else ("size", "share", "what", "who, and how we know")
    )
    table.add_row(*(Text(word, style="dim") for word in dim))
    return table


def _figures(
    kind: Kind, nbytes: int | None, total_bytes: int | None, options: RenderOptions
) -> tuple[Text, Text, Text]:
    what = Text.assemble(options.swatch(kind), " ", (label(kind), KIND_STYLES[kind].style))
    if nbytes is None:
        return Text("unknown", style="dim"), Text(), what
    share = "" if total_bytes is None else percent(nbytes, total_bytes)
    return Text(size(nbytes)), Text(share, style="dim"), what


def _explanation(entry: Entry, options: RenderOptions) -> tuple[Text, ...]:
    who, how = _who(entry, options), _how(entry, options)
    if options.is_wide:
        return who, how
    if not entry.holder and len(who) + len(how) + 3 <= options.width - _NARROW_COLUMNS:
        return (Text.assemble(who, options.clean(" · ") if how else "", how),)
    return (Text("\n").join(part for part in (who, how) if part),)


def _who(entry: Entry, options: RenderOptions) -> Text:
    if entry.holder is None:
        named = windows_process(entry.windows) if entry.kind == "windows" and entry.windows else []
        return Text(options.clean(" · ".join(named)) or sharing(entry) or MEANINGS.get(entry.kind, ""))
    room = options.width - _NARROW_COLUMNS
    if options.is_wide:
        room = room // 2 - 1
    who = Text(options.clean(" · ".join(identity(entry.holder))))
    words = command(entry.holder)
    if words:
        who.append("\n" + options.short(words, room), style="bold")
    shared = sharing(entry)
    if shared:
        who.append("\n" + shared, style="yellow")
    return who


def _how(entry: Entry, options: RenderOptions) -> Text:
    """How we know; a plain fact that needs no word, like what is free, gets none."""
    reasons = list(entry.evidence)
    if entry.claimed is not None and entry.claimed != entry.nbytes:
        whose = "Windows'" if entry.windows else "the driver's"
        reasons.append(f"{whose} own figure is {size(entry.claimed)}")
    if len(reasons) > _MAX_REASONS:
        reasons[_MAX_REASONS - 1 :] = [f"and {len(reasons) - _MAX_REASONS + 1} more such reasons"]
    words = "; ".join(map(_cut_reason, reasons))
    if not words and entry.confidence == "fact":
        return Text()
    return Text(options.clean(f"{entry.confidence}: {words}" if words else entry.confidence), style="dim")


def _cut_reason(reason: str) -> str:
    """*reason*, cut where it names hundreds of processes."""
    if len(reason) <= _MAX_REASON_LENGTH:
        return reason
    half = _MAX_REASON_LENGTH // 2
    return f"{reason[:half]}… {reason[-half:]}"


def _folded_rows(
    table: Table, folded: list[list[Entry]], total_bytes: int | None, options: RenderOptions
) -> None:
    blank = [Text()] if options.is_wide else []
    for group in folded:
        kind: Kind = "process" if group[0].kind_facts.charged else group[0].kind
        figures = _figures(kind, known_bytes(group), total_bytes, options)
        table.add_row(*figures, Text(_folded_words(group)), *blank)


def _folded_words(group: list[Entry]) -> str:
    most = f"{size(max(entry.nbytes or 0 for entry in group))} at most each"
    if group[0].kind_facts.charged:
        pids = {entry.holder.pid for entry in group if entry.holder}
        return f"{len(pids)} more processes, {most}: `vram who` lists them all"
    return f"{len(group)} more like it, {most}: `vram why --json` has them all"


def _sum_rows(table: Table, nbytes: int, total_bytes: int | None, options: RenderOptions) -> None:
    table.add_row(Text(options.clean("─" * 10), style="dim"), Text(options.clean("─" * 6), style="dim"))
    if total_bytes is None:
        table.add_row(
            Text(size(nbytes), style="bold"),
            Text(),
            Text("known"),
            Text(f"{nbytes:,} bytes; the driver does not tell the total", style="dim"),
        )
        return
    if nbytes == total_bytes:
        verdict = Text(f"{nbytes:,} bytes: the lines above sum to the total exactly", style="dim")
    else:
        verdict = Text(
            f"{nbytes:,} bytes, but the GPU has {total_bytes:,}: please report this", style="bold red"
        )
    table.add_row(
        Text(size(nbytes), style="bold"),
        Text(percent(nbytes, total_bytes), style="dim"),
        Text("= total"),
        verdict,
    )


# ---- a GPU divided by MIG: its instances in one table, then each with its own ----


def divided_tables(gpu: GpuLedger, options: RenderOptions) -> Iterator[RenderableType]:
    """Return the GPU's own balance, line by instance, and below it the balance of each instance."""
    loose = [entry for entry in gpu.entries if entry.gpu_instance is None]
    if gpu.total_bytes is not None:
        table = _grid(options)
        parts = [instance_entries(gpu, instance) for instance in gpu.instances]
        for instance, entries in zip(gpu.instances, parts, strict=True):
            table.add_row(*_instance_row(gpu, instance, entries, gpu.total_bytes, options))
        _entry_rows(table, loose, gpu.total_bytes, options)
        _sum_rows(table, sum(map(known_bytes, (*parts, loose))), gpu.total_bytes, options)
        yield table
    for instance in gpu.instances:
        yield Text()
        yield from _instance(gpu, instance, options)


def _instance_row(
    gpu: GpuLedger, instance: Instance, entries: list[Entry], total_bytes: int, options: RenderOptions
) -> tuple[Text, ...]:
    figures = memory_figures(entries, instance.total_bytes) or instance.message or ""
    who = f"{profile(instance)} (GPU instance {instance.gpu_instance}): {figures}"
    return (
        Text(size(known_bytes(entries))),
        Text(percent(known_bytes(entries), total_bytes), style="dim"),
        Text(options.clean(f"MIG {device_names(gpu, instance)}"), style="bold"),
        Text(options.clean(who)),
        *([Text()] if options.is_wide else []),
    )


def instance_entries(gpu: GpuLedger, instance: Instance) -> list[Entry]:
    return [entry for entry in gpu.entries if entry.gpu_instance == instance.gpu_instance]


def device_names(gpu: GpuLedger, instance: Instance) -> str:
    """Return the instance's devices as --gpu takes them: 0:1, 0:2."""
    return ", ".join(f"{gpu.index}:{device.index}" for device in instance.devices)


def profile(instance: Instance) -> str:
    """The size of the whole instance: a device may name its own part of the compute before it."""
    word = instance.devices[0].name.rpartition("MIG ")[2] if instance.devices else ""
    part, dot, whole = word.partition("c.")
    return whole if dot and part.isdigit() else word


def _instance(gpu: GpuLedger, instance: Instance, options: RenderOptions) -> Iterator[RenderableType]:
    label = f"MIG {device_names(gpu, instance)}  {options.clean(instance.devices[0].name)}"
    if len(instance.devices) > 1:
        label += f", shared by {len(instance.devices)} compute instances"
    entries = instance_entries(gpu, instance)
    yield Text(options.short(label, options.width), style="bold")
    if instance.total_bytes is not None:
        yield entries_table(entries, instance.total_bytes, options)
    elif instance.message:
        yield paragraph("  ", Text(options.clean(instance.message), style="bold red"), options)
    for note in instance.notes:
        yield paragraph("note: ", note.text, options, indent=2)
