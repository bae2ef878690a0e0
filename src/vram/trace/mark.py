"""``vram.mark``: a program's own words in its trace."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

LIBRARY = "libvramtracer.so"
MAX_LENGTH = 4096
"""Bytes of a mark in the file (native/FORMAT.md)."""
LOOK_AGAIN_S = 0.05
"""The linker takes some 80 µs to say that a library is not loaded."""

_record: Callable[[bytes], int] | None = None
_looked_at = float("-inf")


def mark(text: str) -> bool:
    """Write *text* into the trace of this process, at this moment; `vram report` shows it on the timeline.

    Returns whether a trace is being recorded (`vram run`, `vram attach`). Where none is, nothing happens:
    the recorder is used only if it is loaded already. More than 4,096 bytes are cut off.
    """
    record = _record or _find()
    if record is None:
        return False
    # A zero byte would end the text in C.
    return record(str(text).replace("\0", " ").encode("utf-8", "replace")[:MAX_LENGTH]) == 0


def _find() -> Callable[[bytes], int] | None:
    """The recorder's function, where the process has loaded the recorder, from whichever installation."""
    global _record, _looked_at
    injected = os.environ.get("CUDA_INJECTION64_PATH", "")
    if os.path.basename(injected) == LIBRARY:
        _record = _function(injected)
    elif time.monotonic() - _looked_at > LOOK_AGAIN_S:
        packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", LIBRARY)
        _record = _function(packaged) or _function(LIBRARY)
        _looked_at = time.monotonic()
    return _record


def _function(path: str) -> Callable[[bytes], int] | None:
    try:
        function = ctypes.PyDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).vram_tracer_mark
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p]
    return function
