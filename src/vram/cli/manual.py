"""The manual pages that were installed with the program, shown by man."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vram.cli.terminal import is_terminal


def installed(command: str | None) -> Path | None:
    """The manual page of *command*, or of the program; None where it was not installed."""
    from importlib.metadata import PackageNotFoundError, files

    name = f"vram-{command}.1" if command else "vram.1"
    try:
        listed = files("vram") or []
    except PackageNotFoundError:
        return None
    found = (Path(str(each.locate())) for each in listed if each.name == name)
    return next((path for path in found if path.is_file()), None)


def show(page: Path) -> bool:
    """Let man show *page*; False where nobody watches, or there is no man."""
    if not is_terminal():
        return False
    try:
        # A path with a slash in it is a file, for man-db and for mandoc.
        return subprocess.run(["man", os.path.abspath(page)]).returncode == 0
    except OSError:
        return False
