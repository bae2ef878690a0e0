"""The HTML page of a trace of ten million events: how large it is, and how soon a browser has drawn it."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from statistics import median

from bench.cases.trace import EVENTS
from bench.native import build
from bench.row import Row
from bench.timing import CommandFailed
from tests.browser.chromium import Browser, BrowserError, find, started
from tests.trace_report.extreme_traces import large
from vram.model.trace import TraceView
from vram.trace.reader import open_trace
from vram.trace_report.pages import page

DRAWN_S = 2.0
SIZE_BYTES = 5_000_000
WHAT = "HTML page of 10 million events, 500 stacks"


def run(turns: int) -> list[Row]:
    if find() is None:
        raise CommandFailed("there is no Chromium here")
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        file, many = Path(folder) / "page.html", Path(folder) / "many.html"
        nbytes = file.write_text(page(_recorded(Path(folder)), title="bench"), "utf-8")
        many.write_text(page(large(stacks=20_000, depth=20, points=2000), title="bench"), "utf-8")
        try:
            drawn_s = median(_drawn_s(browser, file) for _ in range(turns))
            many_s = median(_drawn_s(browser, many) for _ in range(max(3, turns // 3)))
        except BrowserError as error:
            raise CommandFailed(str(error)) from error
    note = "since navigation began, headless Chromium"
    return [
        Row(f"{WHAT}, drawn", drawn_s, "s", target=DRAWN_S, note=note),
        Row(f"{WHAT}, size", nbytes, "bytes", target=SIZE_BYTES),
        Row("HTML page of 20,000 stacks, drawn", many_s, "s", note=note),
    ]


def _recorded(folder: Path) -> TraceView:
    """Ten million events of 500 stacks of 20 frames, as the reader reads them."""
    trace = folder / "trace.vram"
    subprocess.run([build("trace_events", folder), trace, str(EVENTS)], check=True)
    with open_trace([trace]) as opened:
        return opened.view(points=2000)


def _drawn_s(browser: Browser, file: Path) -> float:
    """What the page itself says: performance.now() when its first drawing was on the screen."""
    shown = browser.open(file.as_uri())
    shown.until("document.documentElement.dataset.drawnMs !== undefined")
    drawn_ms = float(shown.run("performance.getEntriesByName('vram-drawn')[0].startTime"))
    shown.close()
    return drawn_ms / 1e3
