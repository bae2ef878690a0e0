"""Contexts of this process that a sticky error broke, told by asking them and by what an exception says.

After one of the errors of :mod:`vram.payloads.trim.sticky_errors` nothing can be freed or tried again in the
context; only the end of the process returns its memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vram.guard.footprint import driver_is_loaded
from vram.guard.out_of_memory import itself_and_causes

LONGEST = 10_000


class BrokenContext(Struct, frozen=True):
    """``code`` is the driver's error number. ``device`` is None where only an exception tells of it."""

    device: int | None
    code: int

    @property
    def error(self) -> str:
        """The driver's name for it."""
        from vram.payloads.trim.sticky_errors import STICKY

        return STICKY[self.code][0]

    def sentence(self, held: str = "its memory") -> str:
        from vram.payloads.trim.sticky_errors import sentence

        return sentence(self.code, self.device, held)


def broken_contexts(error: BaseException | None = None) -> tuple[BrokenContext, ...]:
    """Those that this thread can enter; where none is seen, what *error* says of one. Waits for nothing."""
    if driver_is_loaded():
        from vram.payloads.trim.driver import driver

        with driver.harmless_to_captures():
            found = tuple(BrokenContext(device, code) for device, code in driver.broken().items())
        if found:
            return found
    code = None if error is None else sticky_code(error)
    return () if code is None else (BrokenContext(None, code),)


def seen_broken() -> tuple[BrokenContext, ...]:
    """Those that the last readings of this process's memory met: nobody is asked for it."""
    if not driver_is_loaded():
        return ()
    from vram.payloads.trim.driver import driver

    return tuple(BrokenContext(device, code) for device, code in driver.seen_broken.items())


def note(error: BaseException, broken: Iterable[BrokenContext]) -> None:
    """Add to *error*'s notes what that means, once for each error code."""
    for each in broken:
        told = f"({each.error}, {each.code})"
        if not any(told in str(line) for line in getattr(error, "__notes__", ())):
            error.add_note(f"vram: {each.sentence()}")


def is_sticky(error: BaseException) -> bool:
    """Whether *error* itself reports that the context is broken."""
    return sticky_code(error) is not None


def sticky_code(error: BaseException) -> int | None:
    """The sticky error that *error*, or one that it was raised from, reports; None for any other."""
    from vram.oom.dialects.cuda import sticky_code_in
    from vram.payloads.trim.sticky_errors import STICKY

    for each in itself_and_causes(error):
        # Numba's errors have a code, an int or an enum of cuda-bindings; so have CuPy's and PyTorch's.
        for name in ("code", "status", "error_code"):
            number = getattr(each, name, None)
            if isinstance(number, int) and int(number) in STICKY and _is_of_cuda(each):
                return int(number)
        code = sticky_code_in(_text(each))
        if code is not None:
            return code
    return None


def _text(error: BaseException) -> str:
    """Any program's exception may come by here, and its text is its own code."""
    try:
        return str(error)[:LONGEST]
    except Exception:
        return ""


def _is_of_cuda(error: BaseException) -> bool:
    """Other libraries number other things."""
    return type(error).__module__.partition(".")[0] in ("numba", "cupy_backends", "torch", "cuda", "pycuda")
