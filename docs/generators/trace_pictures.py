"""Take the pictures of a trace's HTML page: the page itself, in a browser, light and dark.

python docs/generators/trace_pictures.py docs/pictures

The trace is made by hand, so that taking them again changes nothing but what the page or the fonts of
this machine change. They need Chromium; without one they stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import Browser, find, started  # noqa: E402
from tests.trace_report.page_traces import training  # noqa: E402
from vram.trace_report.pages import page  # noqa: E402

WIDTH, HEIGHT = 1200, 900
PICTURES = {
    "trace-page": (False, "", "body"),
    "trace-page-dark": (True, "", "body"),
    "trace-flame": (False, "#gpu=0", "#flame-section"),
}
"""Of each: whether it is dark, what is shown, and what is scrolled to."""


def main(folder: str) -> None:
    if find() is None:
        print("no Chromium here: the pictures of a trace's page stay as they are")
        return
    with started() as browser:
        take(browser, Path(folder))


def take(browser: Browser, folder: Path) -> None:
    with TemporaryDirectory() as work:
        file = Path(work) / "page.html"
        file.write_text(page(training(), title="vram-trace-train.vram"), "utf-8")
        for name, (dark, shown, place) in PICTURES.items():
            opened = browser.open(file.as_uri() + shown, width=WIDTH, height=HEIGHT, dark=dark)
            opened.until("document.documentElement.dataset.drawnMs !== undefined")
            # The line with the filters stays on top and would lie over the heading.
            opened.run(f"scrollTo(0, document.querySelector({place!r}).offsetTop - 60)")
            opened.screenshot(folder / f"{name}.png")
            opened.close()


if __name__ == "__main__":
    main(sys.argv[1])
