"""Evidence: named by what it speaks for, readable by programs, and harmless in Markdown."""

from __future__ import annotations

import io

from msgspec.structs import replace
from rich.console import Console

from vram.model.lab import Figure, LabReport, Result
from vram.report.lab import cell, files, read_evidence, results
from vram.report.layout import RenderOptions

REPORT = LabReport(
    taken_at="2026-11-15T04:07:01Z",
    program="vram 0.1",
    gpu="NVIDIA H200 | <b>",
    index=0,
    driver="580.159.04",
    cuda="13.0",
    kernel="6.18.44",
    python="3.12.3",
    virtual=False,
    results=(
        Result(
            experiment="kill-nine",
            topic="When a process ends",
            claim="kill -9 leaves GPU memory behind",
            source="Folklore.",
            verdict="false here",
            because="0 B of 256.0 MiB | still used",
            figures=(Figure("still used", 0, "bytes"),),
        ),
    ),
)


def test_files_are_named_by_date_gpu_and_driver() -> None:
    assert list(files(REPORT)) == [
        "2026-11-15-nvidia-h200-b-580.159.04-lab.json",
        "2026-11-15-nvidia-h200-b-580.159.04-lab.md",
    ]


def test_what_was_kept_can_be_read() -> None:
    data, _ = files(REPORT).values()
    assert read_evidence(data) == REPORT


def test_names_cannot_break_out_of_a_table() -> None:
    _, page = files(REPORT).values()
    text = page.decode()
    assert "NVIDIA H200 \\| \\<b\\>" in text
    rows = [line for line in text.splitlines() if line.startswith("| kill")]
    assert len(rows) == 1
    assert "\\| still used" in rows[0]
    assert cell("a\nb") == "a b"


def test_what_was_left_out_is_told_with_the_option_that_adds_it() -> None:
    def shown(report: LabReport) -> str:
        console = Console(file=io.StringIO(), width=80)
        console.print(results(report, RenderOptions(80)))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return " ".join(text.split())

    assert "--faults" not in shown(REPORT)
    left_out = replace(REPORT, without_faults=("fault-free", "fault-reset"))
    assert "2 experiments left out: they make a kernel fail" in shown(left_out)
    assert "--faults adds them" in shown(left_out)
