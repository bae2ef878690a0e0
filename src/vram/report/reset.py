"""``vram reset`` in words: who is in the way and how each is removed, or what would run."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.plan import Blocker, Receipt
from vram.report.json import encode
from vram.report.layout import RenderOptions, paragraph
from vram.units import counted, size


class ResetReport(Struct, frozen=True, kw_only=True):
    """``blockers`` empty: the GPU could be reset. ``receipt`` null: it was not."""

    schema: int = 1
    gpu: int
    blockers: tuple[Blocker, ...]
    command: str
    receipt: Receipt | None


def report(gpu: int, blockers: tuple[Blocker, ...], command: str, receipt: Receipt | None) -> bytes:
    return encode(ResetReport(gpu=gpu, blockers=blockers, command=command, receipt=receipt))


def text(
    gpu: int, blockers: tuple[Blocker, ...], command: str, receipt: Receipt | None, options: RenderOptions
) -> RenderableType:
    """Return the answer: blockers, or the command, or what came of it."""
    if blockers:
        return Group(*_blocked(gpu, blockers, options))
    if receipt is None:
        return Group(
            Text(f"Nobody is left on GPU {gpu}: it could be reset.", style="bold"),
            paragraph("", Text("With --yes, as root, this would run:"), options),
            Text(f"    {options.clean(command)}", style="bold"),
        )
    done = receipt.outcomes[0]
    return Group(
        Text(f"GPU {gpu}: reset {done.status}", style="bold"),
        paragraph("  ", Text(options.clean(done.message or "")), options),
    )


def _blocked(gpu: int, blockers: tuple[Blocker, ...], options: RenderOptions) -> Iterator[RenderableType]:
    yield Text(f"GPU {gpu} cannot be reset: {counted(len(blockers), 'blocker')}", style="bold")
    for number, each in enumerate(blockers, 1):
        who = "" if each.pid is None else f"pid {each.pid}" + (f" · {each.user}" if each.user else "")
        held = "" if each.nbytes is None else size(each.nbytes)
        words = Text(options.clean(" · ".join(part for part in (who, held, each.why) if part)))
        if each.name:
            words.append("\n" + options.short(each.name, options.measure - 8), style="dim")
        if each.command:
            words.append("\n" + options.clean(each.command), style="bold")
        yield paragraph(f"{number}. ", words, options, indent=2)
    yield paragraph("", Text("A reset is refused, or harms them, while one of them lives."), options)
