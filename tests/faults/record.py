"""Records what the tests of the fault table did: for each, how many tries, how many landed, how many wrong.

A marked test counts as one try that landed. One that tries more often says so through the fixture
``tally``. With pytest-xdist the figures travel with the reports of its workers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.page import Figures, by_row, page
from tests.faults.table import BUILT
from tests.needs import split
from tests.skipped import skip_reason

ROOT = Path(__file__).parents[2]
LAST_RUN = ROOT / ".build" / "faults.json"
PROPERTY = "fault"


class Tally:
    """One test's figures. *landed*: the fault really came about; *wrong*: what must hold did not."""

    def __init__(self) -> None:
        self.tries = self.landed = self.wrong = 0

    def count(self, tries: int = 1, *, landed: int | None = None, wrong: int = 0) -> None:
        self.tries += tries
        self.landed += tries if landed is None else landed
        self.wrong += wrong


TALLY = pytest.StashKey[Tally]()


class Recorder:
    """A pytest plugin; in a worker of xdist it adds figures to reports, elsewhere it also collects them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._page: str | None = config.getoption("--faults-page")
        self._figures: dict[str, Figures] = {}
        self._missing: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        rows = sorted({row for mark in item.iter_markers(PROPERTY) for row in mark.args})
        if rows and (report.when == "call" or report.outcome != "passed"):
            report.user_properties.append((PROPERTY, _told(item, report, rows)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, told in report.user_properties:
            # A test that fails twice, at its end too, has one set of figures and is wrong once.
            if name == PROPERTY and report.when != "teardown":
                self._figures.setdefault(told["test"], Figures(tuple(told["rows"]))).add(told)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput") or not self._figures or self._config.option.collectonly:
            return
        LAST_RUN.parent.mkdir(exist_ok=True)
        LAST_RUN.write_text(json.dumps({name: vars(each) for name, each in self._figures.items()}, indent=1))
        if not _is_whole(self._config):
            return
        self._missing = untried(self._figures, may_skip=self._page is None)
        if self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self._page and session.exitstatus == pytest.ExitCode.OK:
            Path(self._page).write_text(page(self._figures))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._missing:
            terminalreporter.section("fault table")
            for line in self._missing:
                terminalreporter.line(line)


def _told(item: pytest.Item, report: pytest.TestReport, rows: list[int]) -> dict[str, Any]:
    tally = item.stash.get(TALLY, None)
    reason = skip_reason(report)
    skipped = None if reason is None else split(reason)[2]
    if skipped is None and (tally is None or not tally.tries):
        tally = Tally()
        tally.count()
    tally = tally or Tally()
    wrong = max(tally.wrong, int(report.failed))
    return {
        "test": item.nodeid.partition("[")[0],
        "rows": rows,
        "tries": tally.tries,
        "landed": tally.landed,
        "wrong": wrong,
        "skipped": skipped,
    }


def _is_whole(config: pytest.Config) -> bool:
    """Whether every test of the table was asked for: the whole suite, or all that are marked."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return everything and not config.option.keyword and config.option.markexpr in ("", PROPERTY)


def untried(figures: dict[str, Figures], *, may_skip: bool) -> list[str]:
    """What is missing of a whole run: a row without a test that ran, or where something wrong happened."""
    rows = by_row(figures)
    lines = []
    for row in BUILT:
        tests = rows.get(row.number, {})
        skipped = sorted({reason for each in tests.values() for reason in each.skipped})
        if not any(each.tries for each in tests.values()) and not (may_skip and skipped):
            lines.append(f"row {row.number} ({row.fault}): no test ran" + f" {skipped}" * bool(skipped))
        lines += [
            f"row {row.number}: {each.wrong} wrong in {name}" for name, each in tests.items() if each.wrong
        ]
    return lines
