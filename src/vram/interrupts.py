"""Ctrl-C is never lost. Python raises it as an exception, and some code ignores or replaces exceptions.

Python ignores it in finalisers and in callbacks of weak references, msgspec while it imports; while a class
is made, Python 3.11 replaces it with RuntimeError. So every SIGINT is also noted, and asked for before a
command is run or a process is touched, and before an error is called a bug.
"""

from __future__ import annotations

import signal
from typing import NoReturn

_arrived = False


def note_interrupts() -> None:
    """From now on. A SIGINT that is ignored, as under nohup, stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def was_interrupted() -> bool:
    return _arrived


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt where one arrived and was lost."""
    if _arrived:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> NoReturn:
    global _arrived
    _arrived = True
    raise KeyboardInterrupt
