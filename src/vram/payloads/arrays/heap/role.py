"""What an object is to the one that refers to it, where it has no name of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from .words import Link


class Role(NamedTuple):
    """What machinery an object is, and what must be known for naming its children."""

    name: str
    detail: Any = None


# A child, the link to it, and the role that it plays, if any.
Found = Iterator[tuple[object, Link, Optional[Role]]]

ATTRIBUTES = Role("attributes")
CELL = Role("cell")
LOCALS = Role("locals")
THREADS = Role("threads")
TRACEBACK = Role("traceback")
