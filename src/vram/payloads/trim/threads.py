"""Do something while every other thread of this process is asleep."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import eq
from typing import Any

ASLEEP = b"S"  # in a wait that a signal may end: never where code of its own runs
TRIES, PAUSE_S = 20, 0.001

# By PyDLL: no thread of Python runs during these calls, nor has to be waited for after them.
_libc = ctypes.PyDLL(None)
_pread = _libc.pread
_pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
_pread.restype = ctypes.c_ssize_t
_memcmp = _libc.memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]


def do_while_others_sleep(call: Callable[[], None]) -> bool:
    """Whether *call* was made: not where another thread was at work at every try."""
    for _ in range(TRIES):
        if _do_if_all_sleep(call):
            return True
        time.sleep(PAUSE_S)
    return False


def _do_if_all_sleep(call: Callable[[], None]) -> bool:
    """From the first look to the end of *call* is one instruction of the interpreter: what waits for its
    lock goes on waiting."""
    steps: list[Any] = []
    expected: list[object] = []
    files: list[int] = []
    own = threading.get_native_id()
    try:
        for thread in map(int, os.listdir("/proc/self/task")):
            if thread == own:
                continue
            try:
                files.append(os.open(f"/proc/self/task/{thread}/stat", os.O_RDONLY | os.O_CLOEXEC))
                # The name before the state may hold brackets: the last one ends it.
                place = os.pread(files[-1], 4096, 0).rindex(b")") + 2
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            state = ctypes.create_string_buffer(1)
            steps += partial(_pread, files[-1], state, 1, place), partial(_memcmp, state, ASLEEP, 1)
            expected += 1, 0
        steps.append(partial(call))
        expected.append(None)
        return all(map(eq, map(partial.__call__, steps), expected))
    except OSError:  # no /proc, or no descriptor left
        return False
    finally:
        for file in files:
            os.close(file)
