"""The pictures of the guide are taken by their script, at the size that the guide shows."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.browser.chromium import Browser
from tests.docs.conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from generators import trace_pictures


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return struct.unpack(">II", head[16:24])


def test_the_pictures_of_a_trace_are_taken(browser: Browser, tmp_path: Path) -> None:
    trace_pictures.take(browser, tmp_path)
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {path.name for path in (ROOT / "docs" / "pictures").glob("trace-*.png")}
    for name in names:
        assert png_size(tmp_path / name) == png_size(ROOT / "docs" / "pictures" / name) == (1200, 900)
    assert (tmp_path / "trace-page.png").read_bytes() != (tmp_path / "trace-page-dark.png").read_bytes()
