"""``vram doctor``: problems first, each with the sentence that fixes it; then what is well, in brief."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.doctor import CheckResult, Examination, State
from vram.model.observation import HostFacts
from vram.report.layout import RenderOptions, paragraph
from vram.units import counted

# The gravest first: glyph, its form in ASCII, colour.
_MARKS: dict[State, tuple[str, str, str]] = {
    "broken": ("●", "!", "red"),
    "missing": ("▲", "^", "yellow"),
    "limited": ("▲", "^", "yellow"),
    "unknown": ("?", "?", "yellow"),
    "ok": ("·", ".", "green"),
    "not-applicable": ("·", "-", "dim"),
}
_OPTIONAL = ("○", "o", "cyan")
_WELL = ("ok", "not-applicable")
_TOPICS = {"gpu": "GPU", "place": "place", "reaching": "attaching"}
_TOPIC_WIDTH = 13
_MARGIN = 4


def text(
    examination: Examination, host: HostFacts, taken_at: str, options: RenderOptions, *, verbose: bool = False
) -> RenderableType:
    """One screen; *verbose* gives every check lines of its own, with all its details."""
    blocks: list[RenderableType] = [_masthead(host, taken_at, options), _sentence(examination, options)]
    troubles = [reading for reading in examination.results if reading.state not in _WELL]
    ranks = list(_MARKS)
    after_optional = False
    for reading in sorted(troubles, key=lambda each: (each.optional, ranks.index(each.state))):
        # What vram can do without stands close together, in fewer words.
        blocks += [] if after_optional and not verbose else [Text()]
        blocks += _trouble(reading, options, verbose=verbose)
        after_optional = reading.optional
    blocks.append(Text())
    well = [reading for reading in examination.results if reading.state in _WELL]
    blocks += _each(well, options) if verbose else _by_topic(well, options)
    return Group(*blocks)


def _masthead(host: HostFacts, taken_at: str, options: RenderOptions) -> Text:
    parts = [host.name, taken_at, f"Linux {host.kernel}", f"as {host.user}"]
    if host.virtual:
        parts.append("virtual GPUs, no real hardware")
    return Text(options.clean(" · ".join(parts)), style="dim", overflow="fold")


def _sentence(examination: Examination, options: RenderOptions) -> Text:
    counts = {
        state: sum(each.state == state and not each.optional for each in examination.results)
        for state in ("broken", "missing", "limited", "unknown")
    }
    troubles = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    words = {
        "ready": "Everything that vram needs works.",
        "limited": f"vram works here, with limits: {troubles}.",
        "broken": f"Something that vram needs is broken: {troubles}.",
        "no-driver": "No NVIDIA driver answers here: vram has no GPU to read.",
    }[examination.verdict]
    optional = sum(each.optional and each.state not in _WELL for each in examination.results)
    if optional:
        words += f" {counted(optional, 'optional check')} {'has' if optional == 1 else 'have'} a problem."
    style = {"ready": "bold green", "limited": "bold yellow"}.get(examination.verdict, "bold red")
    return Text(options.clean(words), style=style)


def _trouble(reading: CheckResult, options: RenderOptions, *, verbose: bool) -> Iterator[RenderableType]:
    mark, style = options.mark(_OPTIONAL if reading.optional else _MARKS[reading.state])
    state = f"{reading.state}, optional" if reading.optional else reading.state
    title = Text.assemble((reading.check, style), f" {state}: ", (options.clean(reading.seen), "bold"))
    yield paragraph(f"{mark} ", title, options, style=style)
    if reading.means and (verbose or not reading.optional):
        yield paragraph("  ", reading.means, options)
    for detail in reading.details if verbose else ():
        yield paragraph("  - ", Text(options.clean(detail), style="dim"), options)
    if reading.fix:
        yield paragraph("  > " if options.ascii else "  → ", _way_out(reading, options), options)


def _way_out(reading: CheckResult, options: RenderOptions) -> Text:
    """The sentence, and the command beside it, or below it where it would be broken in two."""
    fix, command = options.clean(reading.fix), options.clean(reading.command)
    if not command:
        return Text(fix)
    fix = f"{fix.removesuffix('.')}:"
    fits = len(fix) + 1 + len(command) <= options.measure - _MARGIN
    return Text.assemble(fix, " " if fits else "\n", (command, "bold"))


def _by_topic(readings: Iterable[CheckResult], options: RenderOptions) -> Iterator[RenderableType]:
    well = [reading for reading in readings if reading.state == "ok"]
    for topic, group in groupby(well, key=lambda each: each.topic):
        words = " · ".join(reading.seen for reading in group)
        label = f"  {_TOPICS.get(topic, topic):<{_TOPIC_WIDTH}}"
        yield paragraph(label, words, options, style="green")
    aside = [reading.check for reading in readings if reading.state == "not-applicable"]
    if aside:
        yield paragraph(
            f"  {'not checked':<{_TOPIC_WIDTH}}", Text(options.clean(", ".join(aside)), style="dim"), options
        )


def _each(readings: Iterable[CheckResult], options: RenderOptions) -> Iterator[RenderableType]:
    for reading in readings:
        mark, style = options.mark(_MARKS[reading.state])
        state = "" if reading.state == "ok" else " not applicable:"
        title = Text.assemble((reading.check, style), f"{state} ", options.clean(reading.seen))
        yield paragraph(f"{mark} ", title, options, style=style)
        for detail in reading.details:
            yield paragraph("  - ", Text(options.clean(detail), style="dim"), options)
