"""The lab for people: what there is to test, and what each test showed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.lab import LabClaim, LabReport, Result, Verdict
from vram.report.layout import RenderOptions, manual_page, paragraph
from vram.units import counted, duration, size

STYLES: dict[Verdict, str] = {"true here": "green", "false here": "red", "cannot tell": "yellow"}
MODEL_ONLY = "A virtual GPU: this shows what its model does. It is no evidence about real hardware."


def listing(experiments: Sequence[LabClaim], options: RenderOptions) -> RenderableType:
    """Every experiment under its topic: the name to run it by, and the claim."""
    width = max(len(each.name) for each in experiments) + 2
    blocks: list[RenderableType] = []
    for topic in dict.fromkeys(each.topic for each in experiments):
        blocks += [Text(), Text(topic, style="bold")] if blocks else [Text(topic, style="bold")]
        blocks += [
            paragraph(f"  {each.name:<{width}}", Text(each.claim), options, style="cyan")
            for each in experiments
            if each.topic == topic
        ]
    return Group(*blocks)


def results(report: LabReport, options: RenderOptions) -> RenderableType:
    """Every claim with its verdict and the figures that decided, and how many of each there were."""
    blocks: list[RenderableType] = [Text(options.clean(_masthead(report)), style="dim", overflow="fold")]
    if report.virtual:
        blocks.append(Text(MODEL_ONLY, style="bold yellow"))
    for topic in dict.fromkeys(result.topic for result in report.results):
        blocks += [Text(), Text(topic, style="bold")]
        for result in report.results:
            if result.topic == topic:
                blocks += _result(result, options)
    blocks += [Text(), Text(_count(report), style="bold")]
    if report.left_out:
        count = counted(len(report.left_out), "experiment")
        blocks.append(Text(f"Interrupted: {count} left out.", style="bold yellow"))
    return Group(*blocks)


def _masthead(report: LabReport) -> str:
    parts = [f"GPU {report.index}  {report.gpu}", report.taken_at]
    return " · ".join(parts + ([f"driver {report.driver}"] if report.driver else []))


def _result(result: Result, options: RenderOptions) -> Iterator[RenderableType]:
    yield paragraph(f"{result.verdict:<13}", Text(result.claim), options, style=STYLES[result.verdict])
    yield paragraph(" " * 13, Text(options.clean(result.because), style="dim"), options)


def _count(report: LabReport) -> str:
    verdicts = [result.verdict for result in report.results]
    told = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in STYLES)
    spent_s = sum(result.took_s for result in report.results)
    return f"{counted(len(verdicts), 'claim')}: {told}; {duration(spent_s)}"


def page(experiment: LabClaim, options: RenderOptions) -> str:
    """An experiment's page, with what it takes, in lines that fit *look*."""
    takes = f"takes up to {size(experiment.takes_bytes)} for at most {experiment.deadline_s:.0f} s"
    whole = f"{experiment.name}: {experiment.page.rstrip()}\n\n({takes})"
    return manual_page(whole, options)
