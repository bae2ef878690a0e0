"""The driver's own pools: stream-ordered allocations, and the memory that graphs allocate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..broken import sentence
from ..driver import driver
from ..framework import DEVICE, Framework

if TYPE_CHECKING:
    from ..framework import Line


class Pools(Framework):
    """On every device where this thread has a context to work in; none is made for it."""

    name = "driver pools"

    @classmethod
    def find(cls) -> Iterator[Pools]:
        if driver.devices():
            yield cls()

    def measure(self) -> Iterator[Line]:
        for device in driver.devices():
            counted = [pair for pool in driver.pools(device) if (pair := driver.pool_bytes(pool))]
            held = sum(reserved for reserved, _ in counted)
            yield self.line(DEVICE, device, held, held - sum(used for _, used in counted))
            graphs = driver.graph_bytes(device)
            if graphs is not None and graphs[0]:
                yield {**self.line(DEVICE, device, graphs[0], graphs[0] - graphs[1]), "name": "CUDA graphs"}

    def objections(self) -> Iterator[str]:
        """After a sticky error nothing can be freed, and some libraries abort when they are made to try."""
        for device, code in driver.broken().items():
            yield sentence(code, device)

    def release(self) -> Iterator[str]:
        for device in driver.devices():
            for pool in driver.pools(device):
                driver.trim_pool(device, pool)
            driver.trim_graphs(device)
        yield from ()
