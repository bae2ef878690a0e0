"""``vram fit FILE``: which cards a traced program would have fitted, for people and for scripts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.fit import CardFit, Fit, GpuNeed
from vram.model.trace import TraceView
from vram.report.json import encode
from vram.report.layout import RenderOptions
from vram.report.trace_lines import Cell, head, heading, sentence, table
from vram.report.trace_words import gpu_name
from vram.units import counted, size

_STYLES = {"fits": "green", "if caches shrink": "yellow", "too small": "red"}


def text(view: TraceView, fit: Fit, options: RenderOptions) -> RenderableType:
    """Return what it needed, a line for each card, and what is not known."""
    blocks: list[RenderableType] = [*head(view, options), Text()]
    if not fit.needs:
        blocks.append(sentence("Nothing was allocated on a GPU: it fits every card.", options, indent=0))
        return Group(*blocks)
    blocks += [_need(need, options) for need in fit.needs]
    blocks += [Text(), *_cards(fit, options), Text()]
    blocks += [sentence(words, options, mark="- ", indent=0) for words in fit.assumptions]
    blocks += [Text(), heading("What a trace cannot know", options)]
    blocks += [sentence(words, options, mark="- ", indent=0) for words in fit.doubts]
    return Group(*blocks)


def _need(need: GpuNeed, options: RenderOptions) -> RenderableType:
    parts = [f"{size(need.live_nbytes)} allocated"]
    if need.before_nbytes:
        parts.append(f"{size(need.before_nbytes)} held before recording began")
    if need.contexts:
        parts.append(f"{size(need.context_nbytes)} for {counted(need.contexts, 'context')}")
    words = f"{gpu_name(need.gpu)} needs {size(need.most)} at its peak: {' + '.join(parts)}"
    if need.cached_nbytes:
        words += (
            f"; {size(need.cached_nbytes)} of it was kept unused by a framework's allocator, so"
            f" {size(need.least)} is the least"
        )
    if need.name and need.total_nbytes:
        words += f". It was recorded on {need.name} with {size(need.total_nbytes)}"
    return sentence(f"{words}.", options, indent=0)


def _cards(fit: Fit, options: RenderOptions) -> list[Text]:
    body = (((size(each.card.total_nbytes), _left(each)), _cell(each, options), ()) for each in fit.cards)
    return table(("memory", "left", "card"), body, options)


def _left(each: CardFit) -> str:
    return size(each.left_nbytes).replace("-", "−")


def _cell(each: CardFit, options: RenderOptions) -> Cell:
    def cell(width: int) -> Text:
        name = options.short(each.card.name, max(8, width - 22))
        return Text.assemble(f"{name:<26}", (each.verdict, _STYLES[each.verdict]))

    return cell


class FitReport(Struct, frozen=True, kw_only=True):
    """What ``vram fit --json`` prints. ``needs`` are per GPU; a card must fit the fullest."""

    schema: Literal[1] = 1
    paths: tuple[str, ...]
    fit: Fit


def json(view: TraceView, fit: Fit) -> bytes:
    return encode(FitReport(paths=view.paths, fit=fit))
