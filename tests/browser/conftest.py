"""A real browser, started once, and pages opened in it from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, Page, find, started
from tests.needs import skip_without
from vram.model.trace import TraceView
from vram.trace_report.pages import page

Opened = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find() is None:
        skip_without("browser", "there is no Chromium here")
    with started() as running:
        yield running


@pytest.fixture
def browser_with_tabs() -> Iterator[Browser]:
    program = find(with_tabs=True)
    if program is None:
        skip_without("browser", "there is no Chromium with tabs here, where a page can be hidden")
    with started(program) as running:
        yield running


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """Write the page of a trace and open it; afterwards it must have been quiet, and alone."""
    pages: list[Page] = []

    def open_page(view: TraceView, address: str = "", **options: object) -> Page:
        file = tmp_path / "trace.html"
        file.write_text(page(view, title="trace.vram"), "utf-8")
        shown = browser.open(file.as_uri() + address, **options)  # type: ignore[arg-type]
        pages.append(shown)
        shown.until("document.documentElement.dataset.drawnMs !== undefined")
        return shown

    yield open_page
    for shown in pages:
        assert_quiet(shown, tmp_path)
        shown.close()


def assert_quiet(shown: Page, folder: Path) -> None:
    """No error, nothing on the console, no request but for the file itself."""
    shown.run("0")
    assert not shown.events("Runtime.exceptionThrown")
    assert not shown.events("Runtime.consoleAPICalled")
    assert not shown.events("Log.entryAdded")
    asked = {event["request"]["url"].partition("#")[0] for event in shown.events("Network.requestWillBeSent")}
    assert asked == {(folder / "trace.html").as_uri()}
