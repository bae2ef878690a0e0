"""What every framework's leaf tells about an array, and how a loaded framework is found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..record import Struct


class Description(Struct, frozen=True, gc=False):
    """An array on a GPU. ``nbytes`` is the memory that it keeps from being freed, which is more
    than its own for a view; ``pointer`` is where that begins, so that sharers count once."""

    nbytes: int
    device: int | None
    pointer: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    note: str = ""


class Leaf(Protocol):
    """One framework. Nothing here imports it, and no code of a user's subclass is run.

    ``blocks`` are allocations below the arrays: told only where no array has told them.
    """

    NAME: str

    def arrays(self) -> tuple[type, ...]: ...

    def blocks(self) -> tuple[type, ...]: ...

    def describe(self, found: Iterable[Any], behind: set[int]) -> Iterator[Description | None]:
        """One for each array found, in order; None for what is not on a GPU or already freed.

        Blocks that are told with an array may be put into *behind*, by their ``id``.
        """
        ...

    def describe_blocks(self, found: Iterable[Any], told: set[int]) -> Iterator[Description | None]:
        """The same for blocks; None also for those at addresses that are *told*, where that saves work."""
        ...


def loaded(name: str) -> Any:
    """A module that this process has imported to its end; None otherwise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def kinds(module: Any, *names: str) -> tuple[type, ...]:
    """Those classes that this version of a framework has."""
    found = (getattr(module, name, None) for name in names)
    return tuple(each for each in found if isinstance(each, type))


class Spelled(dict[Any, str]):
    """The name of each dtype, spelled out once: NumPy takes ten microseconds for it."""

    def __missing__(self, dtype: Any) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


def view_note(own: int, kept: int) -> str:
    """A small view that keeps a large array is a leak that sizes alone do not show."""
    return f"a view of {own:,} of these bytes" if own * 2 <= kept else ""
