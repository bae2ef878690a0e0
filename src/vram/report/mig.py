"""A GPU divided by MIG, for people: its instances in one table, then each with its own."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from vram.model.ledger import Entry, GpuLedger, Instance, known_bytes
from vram.report.entries import Line, entries_table, lines_table
from vram.report.look import Look
from vram.report.paragraph import paragraph
from vram.report.phrases import memory_figures


def divided(gpu: GpuLedger, look: Look) -> Iterator[RenderableType]:
    """Return the GPU's own balance, line by instance, and below it the balance of each instance."""
    loose = [entry for entry in gpu.entries if entry.gpu_instance is None]
    if gpu.total_bytes is not None:
        yield lines_table([_line(gpu, each) for each in gpu.instances], loose, gpu.total_bytes, look)
    for instance in gpu.instances:
        yield Text()
        yield from _instance(gpu, instance, look)


def _entries(gpu: GpuLedger, instance: Instance) -> list[Entry]:
    return [entry for entry in gpu.entries if entry.gpu_instance == instance.gpu_instance]


def device_names(gpu: GpuLedger, instance: Instance) -> str:
    """Return the instance's devices as --gpu takes them: 0:1, 0:2."""
    return ", ".join(f"{gpu.index}:{device.index}" for device in instance.devices)


def _line(gpu: GpuLedger, instance: Instance) -> Line:
    entries = _entries(gpu, instance)
    figures = memory_figures(entries, instance.total_bytes) or instance.message or ""
    return Line(
        nbytes=known_bytes(entries),
        what=f"MIG {device_names(gpu, instance)}",
        who=f"{_profile(instance)} (GPU instance {instance.gpu_instance}): {figures}",
    )


def _profile(instance: Instance) -> str:
    """The size of the whole instance: a device may name its own part of the compute before it."""
    word = instance.devices[0].name.rpartition("MIG ")[2]
    part, dot, whole = word.partition("c.")
    return whole if dot and part.isdigit() else word


def _instance(gpu: GpuLedger, instance: Instance, look: Look) -> Iterator[RenderableType]:
    label = f"MIG {device_names(gpu, instance)}  {look.clean(instance.devices[0].name)}"
    if len(instance.devices) > 1:
        label += f", shared by {len(instance.devices)} compute instances"
    entries = _entries(gpu, instance)
    yield Text(look.short(label, look.width), style="bold")
    if instance.total_bytes is not None:
        yield entries_table(entries, instance.total_bytes, look)
    elif instance.message:
        yield paragraph("  ", Text(look.clean(instance.message), style="bold red"), look)
    for note in instance.notes:
        yield paragraph("note: ", Text(look.clean(note)), look, indent=2)
