"""Searches of the heap are made in a small one."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """What other tests have left in this process is not searched: that takes half a second a question."""
    gc.collect()
    gc.freeze()
