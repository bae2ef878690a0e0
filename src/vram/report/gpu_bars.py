"""A bar for each GPU, as many side by side as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.report.entries import device_names, instance_entries, profile
from vram.report.layout import KIND_STYLES, RenderOptions, apportion, padded
from vram.report.phrases import gpu_label
from vram.units import GIB, MIB, size

_NARROWEST_CELL = 38
_WIDEST_BAR = 60
_NARROWEST_BAR = 8
_MAX_INSTANCES = 16
"""Past so many MIG instances each GPU has one bar again; `vram why --gpu N` has them all."""
_VIRTUAL = " (virtual)"
_MAKERS = ("NVIDIA ", "AMD ", "Intel(R) ", "Intel ", "GeForce ", "Tesla ", "Quadro ")


class GpuBar(NamedTuple):
    """One GPU or MIG instance: its label, its bytes by kind, and its figures; or what is wrong with it."""

    label: str
    entries: Sequence[Entry]
    figures: str
    complaint: str = ""
    gpu: int = 0


def gpu_bars(ledger: Ledger) -> list[GpuBar]:
    """Return a bar for each GPU; for each instance of one that is divided by MIG, while these are few."""
    divided = sum(len(gpu.instances) for gpu in ledger.gpus) <= _MAX_INSTANCES
    return [bar._replace(gpu=gpu.index) for gpu in ledger.gpus for bar in _bars(gpu, divided)]


def _bars(gpu: GpuLedger, divided: bool) -> Iterator[GpuBar]:
    if divided and gpu.mig is None and gpu.instances:
        for instance in gpu.instances:
            entries = instance_entries(gpu, instance)
            label = f"MIG {device_names(gpu, instance)} {profile(instance)}"
            yield GpuBar(label, entries, used_of(entries, instance.total_bytes), instance.message or "")
        return
    label = f"{gpu_label(gpu)} {_model(gpu)}".rstrip()
    complaint = ""
    if gpu.status not in ("ok", "denied") or gpu.total_bytes is None:
        complaint = f"{gpu.status}: {gpu.message}" if gpu.message else gpu.status
    if gpu.total_bytes == 0 and gpu.system is not None:
        yield GpuBar(label, (), f"{size(known_bytes(gpu.system.entries))} host", complaint)
    else:
        yield GpuBar(label, gpu.entries, used_of(gpu.entries, gpu.total_bytes), complaint)


def _model(gpu: GpuLedger) -> str:
    name = gpu.name
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    # The label says "GPU" already.
    words = [name.removeprefix("GPU").strip()]
    if gpu.facts is not None and gpu.facts.virtual and "virtual" not in name.lower():
        words.append(_VIRTUAL.strip())
    return " ".join(filter(None, words))


def used_of(entries: Sequence[Entry], total: int | None) -> str:
    """Return "62.1/80.0 GiB"; what no MIG instance was given, and what may be free, is not used."""
    if not total:
        return ""
    unused = known_bytes(entry for entry in entries if entry.kind in ("free", "unreported", "unassigned"))
    least = ">=" if any(entry.kind == "unreported" and entry.nbytes for entry in entries) else ""
    scale, unit = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
    return f"{least}{(total - unused) / scale:.1f}/{total / scale:.1f} {unit}"


def gpu_lines(bars: Sequence[GpuBar], options: RenderOptions) -> list[Text]:
    """Lay the bars out, side by side where there is room."""
    if not bars:
        return []
    most = max(1, (options.width + 2) // (_NARROWEST_CELL + 2))
    lines = -(-len(bars) // most)
    abreast = -(-len(bars) // lines)
    width = (options.width - 2 * (abreast - 1)) // abreast
    figures = max(len(bar.figures) for bar in bars)
    shape = _shape(width, _longest_label(bars, options), figures)
    if shape.label < _longest_label(bars, options):
        bars = [bar._replace(label=bar.label.removesuffix(_VIRTUAL)) for bar in bars]
        shape = _shape(width, _longest_label(bars, options), figures)
    cells = [_cell(bar, width, shape, options) for bar in bars]
    return [Text("  ").join(cells[at : at + abreast]) for at in range(0, len(cells), abreast)]


def _longest_label(bars: Sequence[GpuBar], options: RenderOptions) -> int:
    return max(cell_len(options.clean(bar.label)) for bar in bars)


class _Shape(NamedTuple):
    label: int
    bar: int
    figures: int


def _shape(width: int, labels: int, figures: int) -> _Shape:
    """Divide a cell; the bar gets what is left, and the label gives way where that is too little."""
    bar = min(_WIDEST_BAR, max(_NARROWEST_BAR, width - labels - figures - 2))
    return _Shape(max(5, min(labels, width - bar - figures - 2)), bar, figures)


def _cell(bar: GpuBar, width: int, shape: _Shape, options: RenderOptions) -> Text:
    label = options.short(bar.label, shape.label)
    cell = Text(no_wrap=True)
    cell.append(padded(label, shape.label), style="bold").append(" ")
    if bar.complaint:
        words = options.short(bar.complaint, width - shape.label - 1)
        return cell.append(padded(words, width - shape.label - 1), style="bold red")
    if bar.figures and bar.entries:
        kinds = list(KIND_STYLES)
        sums = [known_bytes(entry for entry in bar.entries if entry.kind == kind) for kind in kinds]
        for kind, cells in zip(kinds, apportion(sums, shape.bar), strict=True):
            cell.append(*options.swatch(kind, cells))
        cell.append(f" {bar.figures:>{shape.figures}}")
    else:
        cell.append(bar.figures)
    cell.append(" " * max(0, width - cell.cell_len))
    return cell
