"""The pictures of the guides are taken by their scripts, at the size that the guides show."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from tests.browser.chromium import Browser
from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from generators import serve_pictures, trace_pictures


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


def test_the_pictures_of_the_service_are_taken(
    browser: Browser, native_libraries: Path, tmp_path: Path
) -> None:
    serve_pictures.take(browser, tmp_path)
    names = {path.name for path in tmp_path.glob("*.png")}
    assert names == {path.name for path in (ROOT / "docs" / "pictures").glob("serve-*.png")}
    for name in names:
        assert png_size(tmp_path / name) == png_size(ROOT / "docs" / "pictures" / name) == (1200, 900)
    assert (tmp_path / "serve-page.png").read_bytes() != (tmp_path / "serve-page-dark.png").read_bytes()
