"""Keeps what was measured: one JSON file for programs, one Markdown file for people."""

from __future__ import annotations

import json
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def write(folder: Path, gpu: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[Path, Path]:
    """Write both files, named by date, GPU and driver; return their paths."""
    now = datetime.now(timezone.utc)
    facts = {
        "date": now.isoformat(timespec="seconds"),
        "gpu": gpu["name"],
        "driver": gpu["driver"],
        "cuda": gpu["cuda"],
        "kernel": kernel(),
        "python": platform.python_version(),
        "rows": rows,
    }
    name = f"{now:%Y-%m-%d}-{slug(gpu['name'])}-{slug(gpu['driver'])}"
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / f"{name}.json", folder / f"{name}.md"
    data.write_text(json.dumps(facts, indent=1) + "\n")
    page.write_text(markdown(facts))
    return data, page


def kernel() -> str:
    """The kernel's version, without what its builder added to it."""
    return platform.release().partition("-")[0]


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def markdown(facts: dict[str, Any]) -> str:
    lines = [
        f"# {facts['gpu']}, driver {facts['driver']}",
        "",
        f"{facts['date']}, CUDA {facts['cuda']}, Linux {facts['kernel']}, Python {facts['python']}. "
        "Written by `make gpu EVIDENCE=docs/evidence`. Figures in MiB since the row "
        "began unless a name says otherwise.",
    ]
    for table in dict.fromkeys(row["table"] for row in facts["rows"]):
        lines += ["", f"## {table}", "", "| situation | expected | measured | |", "|---|---|---|---|"]
        lines += [_line(row) for row in facts["rows"] if row["table"] == table]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = (row["situation"], row["expected"], short(row["measured"]), _verdict(row))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdict(row: dict[str, Any]) -> str:
    return row["status"] if row["ok"] is not False else "**not as expected**: " + "; ".join(row["unmet"])


def short(value: Any) -> str:
    """Show nested figures on one line, without JSON's quotes."""
    if isinstance(value, dict):
        return "{" + inner(value) + "}" if value else "none"
    if isinstance(value, list | tuple):
        return ", ".join(short(item) for item in value) or "none"
    return str(value)


def inner(value: dict[Any, Any]) -> str:
    return ", ".join(f"{name}: {short(item)}" for name, item in value.items())
