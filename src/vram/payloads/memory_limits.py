"""Limits of GPU memory by control group, through NVML: read, or set one.

    memory_limits get UUID FOLDER…            a line of JSON on descriptor 3 for each folder
    memory_limits set UUID FOLDER SOFT HARD   one line; bytes, HARD "max" for no limit

A FOLDER is that of the group, below /sys/fs/cgroup. The structures are those of nvidia-ml-py 13.615. Runs in
a process of its own: any call may hang in the driver.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_ulonglong, c_void_p

from . import end_with_parent, say
from .libnvml import Nvml

NO_LIMIT = 2**64 - 1
FUNCTION_NOT_FOUND = 13


class SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""

    _fields_ = (("cgroup", c_char_p), ("soft", c_ulonglong), ("hard", c_ulonglong))


class GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (("cgroup", c_char_p), ("soft", c_ulonglong), ("hard", c_ulonglong), ("used", c_ulonglong))


def call(nvml: Nvml, function: str, handle: c_void_p, limits: ctypes.Structure) -> int:
    """NVML's code; a library that lacks the function is an older driver's."""
    try:
        return nvml.call(function, handle, byref(limits))
    except AttributeError:
        return FUNCTION_NOT_FOUND


def get(nvml: Nvml, handle: c_void_p, folder: str) -> None:
    limits = GetLimits(folder.encode())
    code = call(nvml, "nvmlDeviceGetMemoryLimits_v1", handle, limits)
    if code:
        say(folder=folder, code=code)
        return
    hard = None if limits.hard == NO_LIMIT else limits.hard
    say(folder=folder, code=0, hard=hard, soft=limits.soft, used=limits.used)


def main() -> None:
    end_with_parent()
    verb, uuid, *rest = sys.argv[1:]
    nvml = Nvml.start()
    handle = nvml.handle(uuid) if nvml is not None else None
    if nvml is None or handle is None:
        say(code=-1)
    elif verb == "get":
        for folder in rest:
            get(nvml, handle, folder)
    else:
        folder, soft, hard = rest
        limits = SetLimits(folder.encode(), int(soft), NO_LIMIT if hard == "max" else int(hard))
        say(folder=folder, code=call(nvml, "nvmlDeviceSetMemoryLimits_v1", handle, limits))
