"""The pictures show what `vram why` prints, and a second run of their script changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from generators import pictures, top_pictures

from tests.docs.pages import ROOT
from vram.virtualgpu.demos import DEMOS, FORK

pytestmark = pytest.mark.usefixtures("native_libraries")


def test_there_is_a_picture_for_every_demo_and_one_for_several() -> None:
    docs = ROOT / "docs"
    top = {docs / "pictures" / f"{name}.svg" for name in top_pictures.PICTURES}
    drawn = {path for path, _ in pictures.pictures(docs)}
    assert drawn | top == {docs / "why.svg", *docs.glob("pictures/*.svg")}
    assert drawn == {docs / "why.svg", *(docs / "pictures" / f"{demo.name}.svg" for demo in DEMOS)}


def test_pictures_of_the_live_view_are_the_same_whenever_they_are_taken(tmp_path: Path) -> None:
    for folder in (tmp_path / "first", tmp_path / "second"):
        top_pictures.main(str(folder), scenes=((FORK,),))
    for name in top_pictures.PICTURES:
        first, second = ((tmp_path / each / f"{name}.svg").read_text() for each in ("first", "second"))
        assert first == second
        assert "GHOST" in first
        assert "font-face" not in first


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
