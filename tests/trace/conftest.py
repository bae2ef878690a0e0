"""The reader's library, built where it is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import BUILD
from tests.trace.writer import TraceFile
from vram.model.trace import TraceView
from vram.trace.native import LIBRARY
from vram.trace.reader import open_trace

Read = Callable[[TraceFile], TraceView]


@pytest.fixture(scope="session", autouse=True)
def reader_library() -> None:
    if not LIBRARY.exists():
        subprocess.run([sys.executable, BUILD], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Writes a trace into a file and reads it."""

    def write_and_read(trace: TraceFile) -> TraceView:
        path = tmp_path / "t.vram"
        path.write_bytes(trace.bytes())
        with open_trace([path]) as opened:
            return opened.view()

    return write_and_read
