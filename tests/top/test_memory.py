"""An hour does not grow the view: many refreshes while processes come and go."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from tests.top.churn import refreshed
from vram.units import MIB

REFRESHES = 60
"""`make bench` makes as many as an hour has."""
MAX_GROWTH = MIB // 5


def test_refreshes_do_not_grow_it() -> None:
    def traced() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        after_a_third, at_the_end = asyncio.run(refreshed(REFRESHES, traced))
    finally:
        tracemalloc.stop()
    assert at_the_end - after_a_third < MAX_GROWTH
