"""`vram release`: what will be asked of a server and what is lost; what it said, and what was freed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.release import AskedRequest, ReleaseOrder, ReleaseReceipt
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import one_line
from vram.units import counted, size

MAX_LISTED = 8


class ReleaseReport(Struct, frozen=True, kw_only=True):
    """The JSON of `vram release`; ``receipt`` is None where nothing was asked."""

    schema: int = 1
    order: ReleaseOrder
    receipt: ReleaseReceipt | None = None


def order(found: ReleaseOrder, options: RenderOptions) -> RenderableType:
    """Return who is asked, for what, and what that costs."""
    target = found.target
    head = f"pid {target.process.pid}" + (f" · {target.user}" if target.user else "")
    command = options.short(one_line(target.command), max(20, options.measure - len(head) - 2))
    blocks: list[RenderableType] = [Text.assemble(options.clean(head), "  ", (command, "bold"))]
    said = f"{found.server} {found.version}".strip()
    holds = f"holds {size(found.charged)} on GPU {', '.join(map(str, found.gpus))}"
    if found.whole_gpu:
        holds = f"GPU {', '.join(map(str, found.gpus))} has {size(found.charged)} in use"
    who = f"{said} at {found.where}; with its processes it {holds}"
    blocks.append(paragraph("", Text(options.clean(who)), options, indent=2))
    shown = found.requests[:MAX_LISTED]
    for each in shown:
        blocks.append(
            paragraph("asks ", Text(options.clean(one_line(each)), style="bold"), options, indent=2)
        )
    if len(found.requests) > len(shown):
        blocks.append(Text(f"  and {len(found.requests) - len(shown)} more"))
    if found.predicted_bytes is not None:
        said = f"by its own count {size(found.predicted_bytes)} is on the GPU"
        blocks.append(paragraph("", Text(said), options, indent=2))
    blocks.append(paragraph("lost: ", Text(options.clean(found.loses), style="dim"), options, indent=2))
    if found.undone:
        undone = f"{found.undone}; `vram release --undo {found.pid}`" if found.has_undo else found.undone
        blocks.append(paragraph("back: ", Text(options.clean(undone), style="dim"), options, indent=2))
    return Group(*blocks)


def receipt(done: ReleaseReceipt, options: RenderOptions) -> RenderableType:
    """Return what the server said, and what the driver says."""
    blocks: list[RenderableType] = [
        paragraph("- ", Text(options.clean(line)), options, indent=2) for line in _answers(done.asked)
    ]
    blocks.append(paragraph("", _verdict(done), options, indent=2))
    blocks += [paragraph("- ", Text(options.clean(note)), options, indent=2) for note in _notes(done)]
    return Group(*blocks)


def interrupted(found: ReleaseOrder, asked: Sequence[AskedRequest]) -> str:
    """What is known when a person stops waiting."""
    if not asked:
        return "interrupted: nothing was asked of the server"
    last = asked[-1]
    known = "was answered" if last.status is not None else "was sent and not answered: it may still be done"
    return f"interrupted: {one_line(last.request)} {known}; see `vram why {found.pid}`"


def _answers(asked: Sequence[AskedRequest]) -> Iterator[str]:
    for each in asked[:MAX_LISTED]:
        said = "no answer" if each.status is None else f"HTTP {each.status}"
        yield f"{one_line(each.request)}: {each.problem or said}"
    if len(asked) > MAX_LISTED:
        yield f"and {len(asked) - MAX_LISTED} more"


def _verdict(done: ReleaseReceipt) -> Text:
    order, returned = done.order, done.returned_bytes
    if done.charged_after is None or returned is None:
        return Text(f"The driver could not be read again (after {done.took_s:.2f} s).")
    said = "total memory in use on the GPU was" if order.whole_gpu else "the driver charged it with"
    figures = f" in {done.took_s:.2f} s: {said} {size(done.charged_before)}, now {size(done.charged_after)}"
    if order.undo:
        taken = f"{size(-returned)} taken again" if returned < 0 else "no memory taken yet"
        return Text.assemble((taken, "bold"), figures)
    told = f"{size(returned)} freed" if returned > 0 else "nothing freed"
    return Text.assemble((told, "bold green" if returned > 0 else "bold"), figures)


def _notes(done: ReleaseReceipt) -> Iterator[str]:
    order, freed = done.order, (done.returned_bytes or 0) > 0
    if done.end == "ended":
        yield "the server has ended; that was not asked of it"
    elif done.end == "unanswered":
        yield "it did not say that it is done; what it was asked for may still happen"
    elif done.end == "refused":
        left = len(order.requests) - len(done.asked)
        yield "it refused" + (f"; {counted(left, 'request')} not sent" if left else "")
    elif not order.undo and not freed:
        yield f"{order.server} answered that it is done, and the driver charges it with as much as before"
    if (
        not order.undo
        and order.has_undo
        and any(each.status == 200 and not each.problem for each in done.asked)
    ):
        yield f"`vram release --undo {order.pid}` undoes it"
