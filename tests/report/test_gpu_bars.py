"""The bars of the GPUs: what they draw, and the line that says what their colours mean."""

from __future__ import annotations

import pytest
from rich.text import Text

from tests.golden.screens import SITUATIONS
from vram.report.layout import KIND_STYLES, RenderOptions
from vram.report.screen import gpu_bars, gpu_lines


def lines(name: str, width: int, *, colored: bool, ascii: bool = False) -> list[Text]:
    options = RenderOptions(width, ascii=ascii, colored=colored)
    return gpu_lines(gpu_bars(SITUATIONS[name]()), options)


@pytest.mark.parametrize("width", [80, 200])
def test_eight_gpus_have_one_line_that_names_each_colour(width: int) -> None:
    plain = lines("eight-with-one-ghost", width, colored=False)
    *bars, legend = lines("eight-with-one-ghost", width, colored=True)
    assert [bar.plain for bar in bars] == [bar.plain for bar in plain]
    assert legend.plain == "▚ ghost  █ process  · free"
    ghost = next(span for span in legend.spans if legend.plain[span.start : span.end] == "▚")
    assert ghost.style == KIND_STYLES["orphaned"].style


def test_what_is_too_small_for_the_bar_is_not_in_the_legend() -> None:
    """Each GPU has 645 MB of reserved memory, a twentieth of a cell; where all is free nothing is named."""
    (bar,) = lines("idle", 80, colored=True)
    assert set(bar.plain) & {style.glyph for style in KIND_STYLES.values()} == {"·"}


def test_the_legend_has_no_unicode_where_the_bars_have_none() -> None:
    *_, legend = lines("eight-with-one-ghost", 80, colored=True, ascii=True)
    assert legend.plain == "G ghost  # process  . free"
