"""What the lab found on real hardware, as files to keep: one for programs, one for people."""

from __future__ import annotations

import re

import msgspec

from vram.model.lab import LabReport, Result


def files(report: LabReport) -> dict[str, bytes]:
    """Both files by their names: the date, the GPU and the driver they speak for."""
    stem = f"{report.taken_at[:10]}-{slug(report.gpu)}-{slug(report.driver or 'unknown')}-lab"
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    return {f"{stem}.json": encoded + b"\n", f"{stem}.md": markdown(report).encode()}


def read(contents: bytes) -> LabReport:
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
