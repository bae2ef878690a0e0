"""The picture: well-formed, self-contained, and as inert as the text it shows."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.report.samples import FINDINGS, make_gpu, make_holder, make_ledger
from vram.model.ledger import Entry, Ledger
from vram.report import text
from vram.report.svg import draw


def picture(ledger: Ledger) -> str:
    return draw(lambda look: text.why(ledger, FINDINGS, look), prompt="vram why")


def words(svg: str) -> str:
    return "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")


def test_it_shows_the_answer(ledger: Ledger) -> None:
    shown = words(picture(ledger))
    assert "$ vram why" in shown
    assert "sum to the total exactly" in shown
    assert "VR101" in shown


def test_it_asks_no_server_for_anything(ledger: Ledger) -> None:
    assert "url(http" not in picture(ledger)
    assert "://" not in picture(ledger).replace("http://www.w3.org/2000/svg", "")


@pytest.mark.fault(27)
def test_names_cannot_become_markup() -> None:
    name = "</text><script>alert(1)</script>\x1b[0m\x00"
    svg = picture(make_ledger(make_gpu(Entry(kind="process", nbytes=1, holder=make_holder(7, name)))))
    assert "<script" not in svg
    assert "<script>alert(1)" in words(svg)
