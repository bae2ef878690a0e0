"""Numba: frees that it has put off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..driver import driver
from ..framework import DEVICE, Framework, loaded

if TYPE_CHECKING:
    from ..framework import Line


class Numba(Framework):
    """Only contexts that it has made already: its list of GPUs would wake the driver."""

    name = "Numba"

    def __init__(self, pending: dict[int, Any]) -> None:
        self._pending = pending

    @classmethod
    def find(cls) -> Iterator[Numba]:
        known = getattr(getattr(loaded("numba.cuda.cudadrv.driver"), "driver", None), "devices", None) or {}
        contexts = {int(number): getattr(device, "primary_context", None) for number, device in known.items()}
        pending = {number: getattr(context, "deallocations", None) for number, context in contexts.items()}
        found = {number: each for number, each in pending.items() if each is not None}
        if found:
            yield cls(found)

    def measure(self) -> Iterator[Line]:
        for number, pending in self._pending.items():
            size = getattr(pending, "_size", None)
            yield self.line(DEVICE, number, size, size)

    def release(self) -> Iterator[str]:
        for number, pending in self._pending.items():
            with driver.inside(number) as entered:
                if entered:
                    pending.clear()
        yield from ()
