"""``vram report fit FILE``: which cards a traced program would have fitted, for people and for scripts."""

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


def text(view: TraceView, fit: Fit, options: RenderOptions, *, every_card: bool = False) -> RenderableType:
    """Return the smallest card that fits, what was needed and what is not known; or *every_card*."""
    blocks: list[RenderableType] = [_answer(fit, options), Text(), *head(view, options)]
    if not fit.needs:
        return Group(*blocks)
    blocks += [Text(), *(_need(need, options) for need in fit.needs), Text()]
    if every_card:
        blocks += [*_cards(fit, options), Text()]
    elif len(fit.cards) > 1:
        blocks += [sentence(f"-v lists all {len(fit.cards)} cards.", options, indent=0), Text()]
    blocks += [sentence(words, options, mark="- ", indent=0) for words in fit.assumptions]
    blocks += [Text(), heading("What a trace cannot know", options)]
    blocks += [sentence(words, options, mark="- ", indent=0) for words in fit.doubts]
    return Group(*blocks)


def _answer(fit: Fit, options: RenderOptions) -> RenderableType:
    """The smallest card that fits; one that fits only with smaller caches is named with that."""
    if not fit.needs:
        return sentence("Nothing was allocated on a GPU: it fits every card.", options, indent=0)
    if len(fit.cards) == 1:
        return sentence(_one_card(fit.cards[0]), options, indent=0)
    fitting = [each for each in fit.cards if each.verdict != "too small"]
    if not fitting:
        largest = max(fit.cards, key=lambda each: each.card.total_nbytes)
        missing = size(-largest.left_nbytes)
        return sentence(f"No card fits: {_named(largest)} lacks {missing}.", options, indent=0)
    smallest = min(fitting, key=lambda each: (each.card.total_nbytes, each.verdict != "fits"))
    left = size(smallest.left_nbytes)
    words = f"The smallest card that fits is {_named(smallest)}: {left} would be left"
    sure = [each for each in fitting if each.verdict == "fits"]
    if smallest.verdict != "fits":
        words += " if the framework's caches shrink"
        if sure:
            words += f"; as recorded it is {_named(min(sure, key=lambda each: each.card.total_nbytes))}"
    return sentence(f"{words}.", options, indent=0)


def _one_card(each: CardFit) -> str:
    if each.verdict == "too small":
        return f"It does not fit {_named(each)}: {size(-each.left_nbytes)} is missing."
    condition = "" if each.verdict == "fits" else " if the framework's caches shrink"
    return f"It fits {_named(each)}: {size(each.left_nbytes)} would be left{condition}."


def _named(each: CardFit) -> str:
    return f"{each.card.name} ({size(each.card.total_nbytes)})"


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
    """What ``vram report fit --json`` prints. ``needs`` are per GPU; a card must fit the fullest."""

    schema: Literal[1] = 1
    paths: tuple[str, ...]
    fit: Fit


def json(view: TraceView, fit: Fit) -> bytes:
    return encode(FitReport(paths=view.paths, fit=fit))
