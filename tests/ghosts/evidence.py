"""Keeps which ghosts were named on real hardware."""

from __future__ import annotations

import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest


def write(folder: Path, answer: dict[str, Any], played: list[pytest.TestReport]) -> Path:
    """Write a page named by date, GPU and driver; *answer* is one of ``vram why --json``."""
    gpu, driver = answer["gpus"][0]["name"], answer["driver"]["driver_version"]
    now = datetime.now(timezone.utc)
    page = folder / f"{now:%Y-%m-%d}-{_slug(gpu)}-{driver}-ghosts.md"
    page.write_text("\n".join(_lines(f"{now:%Y-%m-%d %H:%M} UTC", gpu, driver, played)))
    return page


def _lines(when: str, gpu: str, driver: str, played: list[pytest.TestReport]) -> list[str]:
    kernel = platform.release().partition("-")[0]
    head = [
        f"# Ghosts on an {gpu}, driver {driver}",
        "",
        f"{when}, Linux {kernel}, Python {platform.python_version()}. Written by"
        " `make gpu EVIDENCE=docs/evidence`: each situation is acted out by real processes, and the answer of"
        " `vram why --json` must name the right pid, cause and bytes, and balance.",
        "",
        "| situation | | seconds |",
        "|---|---|---|",
    ]
    return [*head, *(f"| {_words(each)} | {each.outcome} | {each.duration:.1f} |" for each in played), ""]


def _words(report: pytest.TestReport) -> str:
    return report.nodeid.rpartition("::test_")[2].replace("_", " ")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
