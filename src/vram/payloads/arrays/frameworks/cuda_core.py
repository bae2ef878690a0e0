"""cuda.core: buffers, wherever their memory comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .array import Description, kinds, loaded

NAME = "cuda.core"


def arrays() -> tuple[type, ...]:
    return kinds(loaded("cuda.core") or loaded("cuda.core.experimental"), "Buffer")


def blocks() -> tuple[type, ...]:
    return ()


def describe_blocks(_found: Iterable[Any], _told: set[int]) -> Iterator[Description | None]:
    return iter(())


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    kind: Any = arrays()[0]
    for each in found:
        address = int(kind.handle.__get__(each) or 0)
        size = kind.size.__get__(each)
        on_device = address and size and kind.is_device_accessible.__get__(each)
        yield (
            Description(size, kind.device_id.__get__(each), address, "bytes", (size,)) if on_device else None
        )
