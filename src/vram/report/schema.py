"""The JSON Schemas of what programs rely on, generated from the model.

``python -m vram.report.schema`` rewrites the copies that are shipped beside this file.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from vram.model.change import Change, WatchState
from vram.model.fleet import FleetFreeReport, FleetReport
from vram.model.history import HoldersReport, PastGhostsReport, SearchReport, SeriesReport, WasteReport
from vram.model.slurm import HookResult
from vram.report.json import ProcessReport, WhyReport
from vram.report.json_reports import DoctorReport, InsideReport, OomReport
from vram.report.process_rows import ProcessesReport
from vram.report.sleeping import SleepReport
from vram.trace_report.json import FitReport, TraceDiffReport, TraceReport

SHIPPED = Path(__file__).with_name("why.schema.json")
REPORTS: dict[str, Any] = {
    "why": WhyReport,
    "ps": ProcessesReport,
    "sleep": SleepReport,
    "inside": InsideReport,
    "process": ProcessReport,
    "doctor": DoctorReport,
    "oom": OomReport,
    "watch": Change | WatchState,
    "report": TraceReport,
    "report-diff": TraceDiffReport,
    "report-fit": FitReport,
    "fleet": FleetReport,
    "fleet-free": FleetFreeReport,
    "slurm": HookResult,
    "history": HoldersReport,
    "history-ghosts": PastGhostsReport,
    "history-waste": WasteReport,
    "history-series": SeriesReport,
    "history-search": SearchReport,
}


def shipped(command: str) -> Path:
    """Where the schema of a command's report lies."""
    return Path(__file__).with_name(f"{command}.schema.json")


def generate(command: str = "why") -> dict[str, Any]:
    """Describe what the program prints.

    msgspec describes what it would accept, where a field with a default may be missing;
    the program prints every field, so here all are required.
    """
    (root,), definitions = msgspec.json.schema_components([REPORTS[command]], ref_template="#/$defs/{name}")
    for definition in definitions.values():
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
        if "description" in definition:
            # From Python 3.13 on docstrings come without their indent; the file must not change.
            definition["description"] = cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"vram {command.replace('-', ' ')} --json",
        **root,
        "$defs": definitions,
    }


def rendered(command: str = "why") -> bytes:
    """Return the shipped file's exact contents."""
    return msgspec.json.format(msgspec.json.encode(generate(command)), indent=2) + b"\n"


if __name__ == "__main__":
    for name in REPORTS:
        shipped(name).write_bytes(rendered(name))
