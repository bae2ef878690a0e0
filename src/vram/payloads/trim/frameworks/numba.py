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

    def __init__(self, contexts: dict[int, Any]) -> None:
        self._contexts = contexts

    @classmethod
    def find(cls) -> Iterator[Numba]:
        known = getattr(getattr(loaded("numba.cuda.cudadrv.driver"), "driver", None), "devices", None) or {}
        contexts = {int(number): getattr(device, "primary_context", None) for number, device in known.items()}
        made = {number: context for number, context in contexts.items() if context is not None}
        if made:
            yield cls(made)

    def _pending(self) -> Iterator[tuple[int, Any]]:
        """Memory waits with the memory manager; modules, streams and events wait with the context."""
        for number, context in self._contexts.items():
            for keeper in (getattr(context, "memory_manager", None), context):
                pending = getattr(keeper, "deallocations", None)
                if pending is not None:
                    yield number, pending

    def measure(self) -> Iterator[Line]:
        for number, pending in self._pending():
            size = getattr(pending, "_size", None)
            yield self.line(DEVICE, number, size, size)

    def release(self) -> Iterator[str]:
        for number, pending in self._pending():
            with driver.inside(number) as entered:
                if entered:
                    pending.clear()
        yield from ()
