"""Refreshes the view of `vram top` as often as an hour has readings; prints how much memory that took.

python bench/refreshed.py COUNT: resident bytes after a third of them, and at the end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.top.churn import refreshed


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


print(*asyncio.run(refreshed(int(sys.argv[1]), resident)))
