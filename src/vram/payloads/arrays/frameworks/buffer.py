"""vram's own buffers: those that own memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .array import Description, kinds, loaded

NAME = "vram.Buffer"
ON_HOST = ("pinned", "zero-copy")


def arrays() -> tuple[type, ...]:
    """None as long as no buffer can have memory, which is known without looking for them."""
    owning = getattr(loaded("vram.guard.allocation"), "living", ())
    has_borrowed = getattr(loaded("vram.guard.foreign"), "has_borrowed", (False,))[0]
    return kinds(loaded("vram.guard.buffer"), "Buffer") if owning or has_borrowed else ()


def blocks() -> tuple[type, ...]:
    return ()


def describe_blocks(_found: Iterable[Any], _told: set[int]) -> Iterator[Description | None]:
    return iter(())


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    for each in found:
        memory = getattr(each, "_memory", None)
        if memory is None or memory.is_closed or memory.kind in ON_HOST or _is_lost(memory):
            yield None
        else:
            yield Description(memory.nbytes, memory.device, memory.pointer, memory.kind, each.shape)


def _is_lost(memory: Any) -> bool:
    """An owner asks the driver whether its context was reset; a borrower leaves that to its owner."""
    return memory.kind != "borrowed" and not memory.is_there
