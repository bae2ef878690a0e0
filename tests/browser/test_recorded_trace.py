"""A trace as it comes from a file, through the reader, to the page in a browser."""

from __future__ import annotations

from pathlib import Path

from tests.browser.conftest import Opened
from tests.trace.writer import TraceFile
from vram.trace.reader import open_trace
from vram.units import MIB

MILLISECOND = 1_000_000


def test_a_trace_from_a_file_is_shown(native_libraries: Path, opened: Opened, tmp_path: Path) -> None:
    """Weights that stay, a temporary at the peak, and a place that keeps a little of every step."""
    trace = TraceFile()
    writer = trace.section(pid=7, command=("python", "<b>train</b>.py")).writer()
    gpu = writer.where(context=0xC0, device=0)
    weights = writer.stack(("load", "/srv/model.py", 3), ("main", "/srv/train.py", 9))
    step = writer.stack(("step", "/srv/train.py", 20), ("main", "/srv/train.py", 12))
    kept = writer.stack(("remember", "/srv/metrics.py", 5), ("main", "/srv/train.py", 13))
    writer.alloc(MILLISECOND, 0x7000_0000_0000, 512 * MIB, where=gpu, stack=weights)
    for number in range(100):
        begin = (10 + 10 * number) * MILLISECOND
        writer.alloc(begin, 0x7100_0000_0000, 256 * MIB, where=gpu, stack=step)
        writer.free(begin + 2 * MILLISECOND, 0x7100_0000_0000, where=gpu)
        writer.alloc(begin + 3 * MILLISECOND, 0x7200_0000_0000 + 4 * MIB * number, MIB, where=gpu, stack=kept)
    writer.mark(500 * MILLISECOND, "half")
    writer.end(1020 * MILLISECOND)
    file = tmp_path / "recorded.vram"
    file.write_bytes(trace.bytes())
    with open_trace([file]) as read:
        page = opened(read.view())

    def text(selector: str) -> str:
        return str(page.run(f"document.querySelector({selector!r}).innerText"))

    assert text("h1") == "python '<b>train</b>.py'"
    assert "GPU 0 was highest at 867.0 MiB, after 1 s, and held 612.0 MiB at the end." in text("#sentences")
    assert "100.0 MiB kept growing, from 1 place: " in text("#sentences")
    assert "remember" in text("#leaks")
    assert "metrics.py:5" in text("#leaks")
    assert text("#places-count") == "3 places: 867.0 MiB at the peak, 612.0 MiB never freed"
    assert "half" in page.run("document.querySelector('#timeline').textContent")
    page.run("document.getElementById('measure-churn').click()")
    page.run("document.getElementById('flame').focus()")
    page.press("ArrowDown", code=40)
    assert text("#flame-status").startswith("All, 25.0 GiB freed again soon")
