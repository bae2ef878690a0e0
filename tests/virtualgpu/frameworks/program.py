"""What every program of this folder uses: the decorator that makes it a part, and used memory as NVML has it.

Standard library only, since these programs run in interpreters that have a framework and nothing else.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MIB = 1 << 20
PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry f() { ret; }\n"
"""The smallest module that a driver could load."""

Part = Callable[[], None]

parts: dict[str, Part] = {}
"""The parts of the module that was imported, in its order: the docstring is the row of the page."""


def part(function: Part) -> Part:
    """A part of a framework: it returns where the virtual GPU carries it, and raises where not."""
    parts[function.__name__] = function
    return function


def main() -> None:
    """Run the part that the command line names."""
    parts[sys.argv[1]]()


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_nvml: ctypes.CDLL | None = None


def used(gpu: int = 0) -> int:
    """Bytes in use on *gpu*, by every process and the driver."""
    global _nvml
    if _nvml is None:
        _nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert _nvml.nvmlInit_v2() == 0
    handle, memory = ctypes.c_void_p(), _Memory()
    assert _nvml.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(handle)) == 0
    assert _nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return memory.used


@contextmanager
def shows_and_returns(nbytes: int) -> Iterator[Callable[[], None]]:
    """Used memory is *nbytes* more where the block calls what it is given, and as before at its end."""
    before = used()
    told: list[int] = []
    yield lambda: told.append(used() - before)
    assert told == [nbytes], f"used memory grew by {told}, not by {nbytes}"
    assert used() == before, f"{used() - before} bytes were not returned"
