"""``vram.scrub(thing)``: erases the GPU memory of any library's array, and waits for that.

Caches and pools hand old bytes to their next owner inside a process; what was erased before it
went back to them is not there to be handed over.
"""

from __future__ import annotations

from typing import Any

from vram.errors import Refused
from vram.guard import foreign
from vram.guard.buffer import Buffer
from vram.guard.capture import is_capturing_here
from vram.guard.driver import driver
from vram.guard.zeroing import erase


def scrub(thing: Any) -> int:
    """Set every byte of *thing*'s elements to zero; returns how many. Done when it returns.

    A view of a larger array is erased where it covers it, and nowhere else. Works behind the back
    of its library: gradients and read-only flags are not looked at.
    """
    _refuse_in_capture()
    if isinstance(thing, Buffer):
        thing._erase()
        return thing.nbytes
    seen = foreign.view(thing)
    if seen.layout.nbytes and seen.pointer:
        erase(driver(), seen.pointer, seen.device[1], seen.layout)
    return seen.layout.nbytes


def _refuse_in_capture() -> None:
    """Waiting for the device while a graph is captured would end the capture with an error."""
    if is_capturing_here():
        raise Refused("a CUDA graph is being captured: nothing was erased", hint="scrub before or after it")
