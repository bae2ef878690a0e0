"""The words of `vram park` without a pid: what is known of each process, and how it gets back."""

from __future__ import annotations

from rich.console import Console

from vram.model.parking import GpuShare
from vram.report import parked
from vram.report.layout import RenderOptions
from vram.units import GIB


def line(pid: int, nbytes: int | None) -> parked.ParkedLine:
    recorded = nbytes is not None
    return parked.ParkedLine(
        pid=pid,
        started_at=1,
        user="ada",
        command="python serve.py",
        nbytes=nbytes,
        shares=(GpuShare(gpu=0, uuid="GPU-0", nbytes=nbytes),) if nbytes is not None else (),
        since="2026-01-01T00:00:00Z" if recorded else None,
        by="ada" if recorded else None,
        purpose="park" if recorded else None,
        state="parked",
        known_from="journal" if recorded else "driver",
    )


def told(*lines: parked.ParkedLine) -> str:
    console = Console(width=300, no_color=True)
    with console.capture() as capture:
        console.print(parked.text(parked.report(lines, (), "2026-01-01T01:00:00Z"), RenderOptions(300)))
    return capture.get()


def test_sizes_that_nobody_knows_are_not_called_zero() -> None:
    words = told(line(7, None))
    assert "1 process, of unknown size." in words
    assert "--all" not in words
    assert "`vram unpark PID`" in words


def test_what_is_known_is_summed_and_the_rest_counted() -> None:
    words = told(line(7, 8 * GIB), line(8, None), line(9, GIB))
    assert "3 processes, 9.0 GiB in host memory, 1 of unknown size." in words
    assert "`vram unpark --all`" in words
