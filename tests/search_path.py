"""Where programs that tests start find vram, and what the machine's own Python lacks."""

from __future__ import annotations

import os
from pathlib import Path

import vram

SOURCES = Path(vram.__file__).parents[1]


def search_path(*more: Path) -> str:
    """A PYTHONPATH with vram's sources and *more* first, and what was on it already after them."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(SOURCES), *map(str, more), *([given] if given else [])])
