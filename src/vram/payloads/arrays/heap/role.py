"""What an object is to the one that refers to it, where it has no name of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .words import Link


class Role(NamedTuple):
    """What machinery an object is, and what must be known for naming its children."""

    name: str
    detail: Any = None


if TYPE_CHECKING:
    # A child, the link to it, and the role that it plays, if any.
    Found = Iterator[tuple[object, Link, Role | None]]

ATTRIBUTES = Role("attributes")
CELL = Role("cell")
LOCALS = Role("locals")
THREADS = Role("threads")
TRACEBACK = Role("traceback")
