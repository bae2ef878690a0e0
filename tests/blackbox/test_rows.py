"""Programs that know nothing of vram find the GPU to behave as measured on real hardware."""

from __future__ import annotations

import pytest
import score
from machine import Machine
from rows import ROWS

from tests.needs import skip_without


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: score.Row, machine: Machine, real_gpu: bool) -> None:
    """Every expectation of the row is met, and nothing is left on the GPU."""
    result = score.run(row, machine, real=real_gpu)
    if result["status"].startswith("skipped"):
        skip_without("namespaces", result["status"].removeprefix("skipped: "))
    assert not result["unmet"], result["measured"]
