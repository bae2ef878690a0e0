"""The pictures show what `vram why` prints, and a second run of their script changes nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT
from vram.virtualgpu.demos import DEMOS, FORK

sys.path.insert(0, str(ROOT / "docs"))

from generators import pictures

pytestmark = pytest.mark.usefixtures("native_libraries")


def test_there_is_a_picture_for_every_demo_and_one_for_several() -> None:
    taken = {path.relative_to(ROOT / "docs").as_posix() for path, _ in pictures.pictures(ROOT / "docs")}
    assert taken == {"why.svg", *(f"pictures/{demo.name}.svg" for demo in DEMOS)}
    assert all((ROOT / "docs" / name).exists() for name in taken)


def test_a_picture_is_the_same_whenever_it_is_taken(tmp_path: Path) -> None:
    """Though pids, times and this host's name differ."""
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    pictures.draw((FORK,), first)
    pictures.draw((FORK,), second)
    assert first.read_text() == second.read_text()


def test_a_picture_names_the_demo_by_its_stand_ins(tmp_path: Path) -> None:
    pictures.draw((FORK,), tmp_path / "fork.svg")
    text = re.sub(r"<[^>]+>", "", (tmp_path / "fork.svg").read_text()).replace("&#160;", " ")
    assert "forks.py" in text
    assert set(re.findall(r"\b47\d\d\b", text)) >= {"4711", "4712"}
    assert "VR101" in text
