"""The lab for people: what there is to test, and what each test showed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
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
        blocks.append(Text(f"Interrupted: {count} not run.", style="bold yellow"))
    if report.without_faults:
        count = counted(len(report.without_faults), "experiment")
        text = (
            f"{count} left out: they make a kernel fail, and the driver logs that (Xid). --faults adds them."
        )
        blocks.append(paragraph("", Text(text), options))
    return Group(*blocks)


def _masthead(report: LabReport) -> str:
    parts = [f"GPU {report.index}  {report.gpu}", report.taken_at]
    return " · ".join(parts + ([f"driver {report.driver}"] if report.driver else []))


def _result(result: Result, options: RenderOptions) -> Iterator[RenderableType]:
    yield paragraph(f"{result.verdict:<13}", Text(result.claim), options, style=STYLES[result.verdict])
    yield paragraph(" " * 13, Text(options.clean(result.because), style="dim"), options)


def _count(report: LabReport) -> str:
    verdicts = [result.verdict for result in report.results]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in STYLES)
    spent_s = sum(result.took_s for result in report.results)
    return f"{counted(len(verdicts), 'claim')}: {counts}; {duration(spent_s)}"


def page(experiment: LabClaim, options: RenderOptions) -> str:
    """An experiment's page, with what it takes, in lines that fit *options*."""
    takes = f"takes up to {size(experiment.takes_bytes)} for at most {experiment.deadline_s:.0f} s"
    whole = f"{experiment.name}: {experiment.page.rstrip()}\n\n({takes})"
    return manual_page(whole, options)


# ---- files to keep of a run on real hardware: one for programs, one for people ----


def files(report: LabReport) -> dict[str, bytes]:
    """Both files by their names: the date, the GPU and the driver they speak for."""
    stem = f"{report.taken_at[:10]}-{slug(report.gpu)}-{slug(report.driver or 'unknown')}-lab"
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    return {f"{stem}.json": encoded + b"\n", f"{stem}.md": markdown(report).encode()}


def read_evidence(contents: bytes) -> LabReport:
    """A report as it was kept."""
    return msgspec.json.decode(contents, type=LabReport)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def markdown(report: LabReport) -> str:
    lines = [
        f"# The lab on {cell(report.gpu)}, driver {cell(report.driver or 'unknown')}",
        "",
        f"{report.taken_at}, CUDA {report.cuda}, Linux {report.kernel}, Python {report.python}, "
        f"{report.program}. Written by `vram lab run --evidence`.",
    ]
    for topic in dict.fromkeys(result.topic for result in report.results):
        lines += ["", f"## {topic}", "", "| claim | here | because |", "|---|---|---|"]
        lines += [_line(result) for result in report.results if result.topic == topic]
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    name = f"{cell(result.claim)} (`{result.experiment}`)"
    return f"| {name} | {result.verdict} | {cell(result.because)} |"


def cell(text: str) -> str:
    """Text of the machine as it may stand in a table of Markdown."""
    flat = " ".join(text.split())
    return re.sub(r"([\\|<>`*_\[\]])", r"\\\1", flat)
