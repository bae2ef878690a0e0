"""The command line, snapshots written by hand, holders on a virtual GPU, and messages as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import busy, no_driver, snapshot, vram
from tests.oom.corpus import MESSAGES
from tests.virtualgpu.conftest import hold

__all__ = ["busy", "hold", "no_driver", "snapshot", "vram"]

Log = Callable[[str], str]


@pytest.fixture
def log_of(tmp_path: Path) -> Log:
    """Write a message of the corpus into a file of its own, and return the file's name."""

    def write(name: str) -> str:
        path = tmp_path / f"{name}.txt"
        path.write_bytes(MESSAGES[name].log)
        return str(path)

    return write
