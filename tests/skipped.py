"""The end of a run says what was skipped and how to get it; what a machine must have is no reason to skip."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.needs import NEEDS, split


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-have",
        metavar="FILE",
        help="fail what would be skipped for one of the needs that FILE lists, one per line (tests/needs.py)",
    )


def read_list(path: Path) -> frozenset[str]:
    """The needs of a file: a name per line, comments after #."""
    try:
        text = path.read_text()
    except OSError as error:
        raise pytest.UsageError(f"--must-have: cannot read {path}: {error.strerror}") from error
    names = [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]
    unknown = [name for name in names if name not in NEEDS]
    if unknown:
        raise pytest.UsageError(f"--must-have: {path}: no such need in tests/needs.py: {', '.join(unknown)}")
    return frozenset(names)


class SkipReporter:
    """A pytest plugin: reports are changed where a test runs, also in a worker of xdist, and counted once."""

    def __init__(self, config: pytest.Config) -> None:
        self._file: str | None = config.getoption("--must-have")
        self._must_have = read_list(Path(self._file)) if self._file else frozenset()
        self._lines: Counter[str] = Counter()

    # First of the wrappers, so that it changes the report after all others have read it.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if (reason := skip_reason(report)) is not None:
            need, name, detail = split(reason)
            if need is not None and name in self._must_have:
                report.outcome = "failed"
                report.longrepr = (
                    f"{name} is missing: {detail}.\n"
                    f"This machine must have it ({self._file}), so the test is not skipped.\n"
                    f"How to get it: {need.how}."
                )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if (reason := skip_reason(report)) is not None:
            need, _, detail = split(reason)
            self._lines[f"{need.missing} ({need.how})" if need else detail] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line, count in self._lines.most_common():
            terminalreporter.line(f"skipped {count}: {line}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why the test of this report was skipped; None where it was not. An expected failure is not skipped."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
