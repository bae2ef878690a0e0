"""The page of `vram serve` for 16 GPUs and 2,000 processes: how soon it is there, what a reading costs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from bench.row import Row
from bench.timing import CommandFailed
from tests.browser.chromium import BrowserError, Page, find, started
from tests.browser.large_service import running

FRAME_S = 0.1  # what people take for "at once"
FIRST_S = 2.0
WHAT = "page of vram serve, 16 GPUs, 2,000 processes"
ACT = """(() => {
  const began = performance.now();
  %s;
  document.body.offsetHeight;  // laid out by now
  return performance.now() - began;
})()"""
SORT = ACT % "document.querySelector('th[data-key=size] button').click()"
FILTER = ACT % (
    "const box = document.getElementById('filter'); box.value = box.value ? '' : 'user3 resnet7';"
    " box.dispatchEvent(new Event('input'))"
)


def run(turns: int) -> list[Row]:
    if find() is None:
        raise CommandFailed("there is no Chromium here")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as address, started() as browser:
        try:
            page = browser.open(address, width=1280)
            first_s = _first_s(page)
            update_s = median(_update_s(page) for _ in range(turns))
            sort_s = median(float(page.run(SORT)) / 1e3 for _ in range(turns))
            filter_s = median(float(page.run(FILTER)) / 1e3 for _ in range(turns))
        except BrowserError as error:
            raise CommandFailed(str(error)) from error
    return [
        Row(f"{WHAT}, there", first_s, "s", target=FIRST_S, note="since navigation began, headless Chromium"),
        Row(f"{WHAT}, a new reading", update_s, "s", target=FRAME_S, note="every third process has changed"),
        Row(f"{WHAT}, sorted", sort_s, "s", target=FRAME_S),
        Row(f"{WHAT}, filtered", filter_s, "s", target=FRAME_S),
    ]


def _first_s(page: Page) -> float:
    page.until("Number(document.documentElement.dataset.drawn) > 0")
    return float(page.run("performance.getEntriesByName('vram-drawn')[0].startTime")) / 1e3


def _update_s(page: Page) -> float:
    drawn = int(page.run("document.documentElement.dataset.drawn"))
    page.until(f"Number(document.documentElement.dataset.drawn) > {drawn}")
    return float(page.run("document.documentElement.dataset.drawMs")) / 1e3
