"""How each framework words running out of memory, across its versions: a module for each family.

A dialect is a function under :func:`dialect`. It takes the figures of a message and nothing else. Their order
is in :mod:`vram.oom.recognise`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from vram.model.oom import OomReading
from vram.oom.passage import Passage

Match = re.Match[str]
Parsed = tuple[OomReading, int] | None
"""What a message says and where in the text it ends; None where it only looked like one."""
Read = Callable[[Match, Passage], Parsed]


class Dialect(NamedTuple):
    """How a message begins, and what can be read from there on.

    One of ``needles`` is in every message that ``start`` matches, in its first line where nothing wrapped
    it. ``read(found, passage)`` gets the match and the text that it is in, with the log above.
    """

    name: str
    needles: tuple[bytes, ...]
    start: re.Pattern[str]
    read: Read


def dialect(name: str, *, needles: tuple[bytes, ...], start: re.Pattern[str]) -> Callable[[Read], Dialect]:
    """Make a function that reads one kind of message a dialect."""
    return lambda read: Dialect(name, needles, start, read)
