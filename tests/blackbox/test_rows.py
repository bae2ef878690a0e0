"""Programs that know nothing of vram find the GPU to behave as measured on real hardware."""

from __future__ import annotations

import pytest
import score
from rows import ROWS
from theatre import Theatre


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: score.Row, theatre: Theatre, real_gpu: bool) -> None:
    """Every expectation of the row is met, and nothing is left on the GPU."""
    result = score.play(row, theatre, real=real_gpu)
    if result["status"].startswith("skipped"):
        pytest.skip(result["status"])
    assert not result["unmet"], result["measured"]
